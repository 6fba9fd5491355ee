"""FloatZip's kernel, the one part of streamxf that is compiled; pyproject.toml has everything else.

It uses CPython's stable ABI, so that a wheel serves every version from 3.11 on. Free-threaded builds of CPython have no
stable ABI; there it is compiled for that version alone. Where it cannot be compiled, streamxf installs and works
without it, more slowly.
"""

import sysconfig

from setuptools import Extension, setup

STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    ext_modules=[
        Extension(
            "streamxf.codecs.floatzip._kernel",
            ["streamxf/codecs/floatzip/_kernel.c"],
            depends=["streamxf/codecs/floatzip/differences.h"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if STABLE else [],
            extra_compile_args=["-std=c11", "-O3", "-fno-math-errno", "-g0"],
            py_limited_api=STABLE,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE else {},
)
