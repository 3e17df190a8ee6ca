import json
import re

import pytest

from vicinal.report.page.markup import document, element, joined, section, table

HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'; --", "a & b", "{{script}}", "]]>"]
HOSTILE += ["</title>"]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_never_becomes_markup(text: str) -> None:
    for made in (element("p", text), element("p", title=text), joined([text]), table(text, [text], [[text]])):
        assert "<script" not in made
        assert "<img" not in made
        assert "</title" not in made
    assert element("p", text, title=text).count('"') == 2  # only those around the attribute


@pytest.mark.parametrize("text", [*HOSTILE, "\u2028 line", "<!--", "é – 文"])
def test_data_cannot_end_the_script(text: str) -> None:
    whole = document("", "", {}, {text: [text]}).decode()
    made = whole.split('id="page-data">')[1].split("</script>")[0]
    assert not set("<>&\u2028\u2029") & set(made)
    assert json.loads(made) == {text: [text]}


def test_page_puts_parts_in_once_and_what_they_say_is_not_replaced() -> None:
    groups = {"{{header}}": [section("one", "{{main}}", "{{contents}}", "{{script}}"), None], "empty": [None]}
    whole = document("{{data}} & <b>", "{{style}}", groups, {"a": "{{title}}"}).decode()
    assert "<title>{{data}} &amp; &lt;b&gt;</title>" in whole
    assert re.search(r"<p>\{\{style\}\} · <time class=\"unbroken\">\d{4}-\d\d-\d\d</time></p>", whole)
    assert '<section id="one" aria-labelledby="one-title"><h2 id="one-title">{{main}}</h2>' in whole
    assert '<p class="lead">{{contents}}</p>{{script}}</section>' in whole
    assert '<p>{{header}}</p><ul aria-label="{{header}}"><li><a href="#one">{{main}}</a></li></ul>' in whole
    assert "empty" not in whole.split("<nav")[1].split("</nav>")[0]
    assert '{"a":"{{title}}"}' in whole
