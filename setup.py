"""FloatZip's kernel and that of differences, which alone are compiled; pyproject.toml has everything else.

They use CPython's stable ABI, so that a wheel serves every version from 3.11 on. Free-threaded builds of CPython have
no stable ABI; there they are compiled for that version alone. Where they cannot be compiled, streamxf installs and
works without them, more slowly.
"""

import sysconfig

from setuptools import Extension, setup

STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    ext_modules=[
        Extension(
            f"streamxf.codecs.floatzip.{name}",
            [f"streamxf/codecs/floatzip/{name}.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if STABLE else [],
            extra_compile_args=["-std=c11", "-O3", "-fno-math-errno", "-g0"],
            py_limited_api=STABLE,
            optional=True,
        )
        for name in ("_kernel", "_differences")
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE else {},
)
