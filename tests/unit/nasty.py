"""Texts that chunkers find hard: Markdown that is nearly something else, odd line ends, odd characters."""

from __future__ import annotations

from hypothesis import strategies as st

FRAGMENTS = [
    "#", "##", "###", "# a", "## b ##", "## Título\n", "### c\n", " # d", "    # e", "#f", "####### g",
    "a", "b c", "foo", "palavra ", "ção", "e\u0301", "\u00e9", "😀", "👩🏽\u200d💻", "\u2028", "\u00a0", "\ufeff",
    "\n", "\n", "\n", "\n", "\n", "\n\n", "\n\n", "\r\n", "\r", "\n \n", " ", "  ", "    ", "\t", "  \n", "\x0c",
    "-", "- ", "* ", "+ ", "1. ", "2) ", "14. ", "1.", "-\t", "*\t", "- a\n  b\n", "- x y\nz\n", "1. **b** c\n", "- [l](u)\n", "* `c`\n", "  - n\n", "- ***\n", "1.  a\n\n    b\n", "- ```\n",
    ">", "> ", ">\t", "> q\nl\n", "> ```\n", "> - ",
    "```", "````", "~~~", "`", "```x\n", "```\na\n```\n",
    "===", "---", "--", "=", "\n===\n", "\n---\n", "***", "* * *", "___", "- - -", "x\ny",
    "<div>", "</div>", "<a>", '<a b="c">', "<!--", "-->", "<pre>", "</pre>", "<?", "?>", "<!A", "<![CDATA[", "]]>",
    "<x", "[a]: /u", '[a]: <x> "t"', '"t"', "[", "](", "(x)", "]: y", "\\", "'", "&", "{/* */}",
    "| a | b |\n", "|---|---|\n", "| 1 | 2 |\n", "|", "|-|\n",
    "---\n", "title: x\n", "kind: example\n", "tags: [a, 'b']\n", "user: ", "assistant: oi\n", "Ana (10:00): ",
    '{"role": "user", "text": "oi"}\n', '{"role": "a"', "[{", "}]", "fn main() {\n", "}\n", "key: value\n", "[t]\n",
]  # fmt: skip


def texts(most: int = 60) -> st.SearchStrategy[str]:
    """Texts of up to `most` fragments."""
    return st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=5), max_size=most).map(
        lambda parts: "".join(parts).replace("\0", "")
    )
