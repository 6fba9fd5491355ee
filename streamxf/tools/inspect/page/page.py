"""`page_of`: the page, from the files next to this one."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files
from string import Template

from streamxf.tools.inspect.page.data import MAX_ITEMS, page_data
from streamxf.tools.inspect.page.facts import facts, figures, groups
from streamxf.tools.inspect.page.values import attention
from streamxf.tools.inspect.summary import Summary
from streamxf.version import __version__
from streamxf.wording import many, printable

SCRIPTS = ("base.js", "colours.js", "layout.js", "labels.js", "treemap.js", "layers.js", "tensors.js")


def page_of(summary: Summary, max_items: int = MAX_ITEMS) -> str:
    """A self-contained page of HTML.

    Names come from the checkpoint, which may be hostile: they are escaped here, and the script only ever makes text of
    them. The policy in the page's head allows this one script and this one style sheet, by their digests, and nothing
    else; so even a mistake in that could neither run nor fetch anything.

    Parameters
    ----------
    max_items : int
        How many items are in the page one by one; the others are added up.
    """
    contents = summary.contents
    style = _asset("style.css")
    script = "\n".join(_asset(name) for name in SCRIPTS)
    data = page_data(summary, max_items)
    left_out = data["left_out"]
    note = f"{many(left_out, 'smaller item')} of this checkpoint are added up by module." if left_out else ""
    return Template(_asset("page.html")).substitute(
        policy=f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        title=_text(contents.path.rstrip("/").rpartition("/")[2] or contents.path),
        path=_text(contents.path),
        format=_text(str(contents.format)),
        figures=figures(summary),
        attention=attention(summary.values),
        groups=groups(summary),
        facts=facts(summary),
        note=escape(note),
        source="the checkpoint's own metadata" + (" and its tensors" if summary.values is not None else ""),
        version=escape(__version__),
        style=style,
        data=_json(data),
        script=script,
    )


def _asset(name: str) -> str:
    return files("streamxf.tools.inspect.page").joinpath(name).read_text(encoding="utf-8")


def _text(text: str) -> str:
    return escape(printable(text))


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"


def _json(data: object) -> str:
    """JSON for the inside of a script element, which a ``</script`` anywhere in it would end."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e")
