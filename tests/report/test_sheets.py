"""A table in Markdown, LaTeX, CSV and on a terminal, whatever its cells hold."""

from __future__ import annotations

import csv
import io
import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console

from fedmate.report.sheets import Sheet, plain, to_csv, to_latex, to_markdown, to_rich

HOSTILE = (
    *("a|b", "50 % & more_or {less} #1 $x$", "~^\\ [red]x[/red]", "*star* [opt]", "a\\|b", 'x,"y"', "\\", "**"),
    *("line\nbreak", "two\r\nbreaks\ttab", "ret\rurn", "--quick <b>&lt;</b> 2*CFT \x1b[31m", "`unpaired", "_x_", ""),
)
SIMPLE = Sheet(
    "simple",
    "A table",
    ["method", "view", "paper", "ours", "ours"],
    [["FedAvg", "`pre`", "49.39", "50.12 ± 0.30", "7"], ["2*CFT", "`post`", "", "diverged", "-1.50"]],
    ["the first note", "the second"],
    frozenset({(0, 3)}),
    ["", "", "CIFAR-10, s = 10", "CIFAR-10, s = 10", "own"],
)
PRINTABLE = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=12)


def hostile() -> Sheet:
    """Return a sheet with every hostile text in a cell at the beginning, in the middle and at the end of a row."""
    rows = [[HOSTILE[i - j] for j in range(3)] for i in range(len(HOSTILE))]
    return Sheet("hostile", HOSTILE[1], HOSTILE[:3], rows, HOSTILE[:5], frozenset({(0, 0), (2, 1)}), ["", "g|_", "g|_"])


# -------------------- Markdown


def said(tokens: list[Token]) -> str:
    """Return what a reader of inline Markdown sees; code is between backticks."""
    marks = {"text": "{}", "text_special": "{}", "code_inline": "`{}`"}
    return "".join(marks[token.type].format(token.content) for token in tokens if token.type in marks)


def read_markdown(text: str) -> list[list[str]]:
    """Return the cells of the one table, head first."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    assert [token.type for token in tokens].count("table_open") == 1
    rows: list[list[str]] = []
    for before, token in pairwise(tokens):
        rows += [[]] if before.type == "tr_open" else []
        if before.type in ("th_open", "td_open"):
            rows[-1].append(said(token.children or []))
    return rows


def test_markdown_of_a_table() -> None:
    assert to_markdown(SIMPLE) == (
        "### A table\n"
        "\n"
        "| method | view | CIFAR-10, s = 10: paper | CIFAR-10, s = 10: ours | own: ours |\n"
        "| --- | --- | ---: | ---: | ---: |\n"
        "| FedAvg | `pre` | 49.39 | **50.12 ± 0.30** | 7 |\n"
        "| 2\\*CFT | `post` |  | diverged | -1.50 |\n"
        "\n"
        "- the first note\n"
        "- the second\n"
    )


def test_nothing_does_not_stand_out() -> None:
    sheet = Sheet("n", "t", ["a"], [[""]], bold=frozenset({(0, 0)}))
    assert to_markdown(sheet).endswith("|  |\n")
    assert "textbf" not in to_latex(sheet)


def test_markdown_without_notes_ends_with_the_table() -> None:
    assert to_markdown(Sheet("n", "t", ["a"], [["1"]])).endswith("| --- |\n| 1 |\n")


def test_markdown_keeps_hostile_cells_whole() -> None:
    sheet = hostile()
    assert read_markdown(to_markdown(sheet)) == [
        [plain(name) for name in sheet.names()],
        *([plain(cell) for cell in row] for row in sheet.rows),
    ]


def test_bars_and_backslashes_in_code_do_not_end_a_cell() -> None:
    sheet = Sheet("n", "t", ["a", "b"], [["`x|y`", "1"], ["`x\\|y`", "2"], ["`x\\`", "3"]])
    assert read_markdown(to_markdown(sheet))[1:] == [["`x|y`", "1"], ["`x\\|y`", "2"], ["`x\\`", "3"]]
    # GitHub takes a backslash before another for the end of what it escapes, in code, too.
    assert r"| `x\|y` | 1 |" in to_markdown(sheet)
    assert r"| \`x\\\|y\` | 2 |" in to_markdown(sheet)


@given(st.lists(st.tuples(PRINTABLE, PRINTABLE), max_size=4))
def test_markdown_keeps_any_cells_whole(rows: list[tuple[str, str]]) -> None:
    sheet = Sheet("n", "t", ["a", "b"], rows)
    found = read_markdown(to_markdown(sheet))[1:]
    # Code that is surrounded by spaces loses them: that is what Markdown does.
    assert [[re.sub("` ?| ?`", "", cell) for cell in row] for row in found] == [
        [re.sub("` ?| ?`", "", plain(cell)) for cell in row] for row in rows
    ]


def test_titles_and_notes_in_markdown_say_what_they_say() -> None:
    sheet = Sheet("n", "a_b_c [x](y) <b>", ["a"], [], ["*no* `co|de_`", "# no title\n\n- nothing"])
    tokens = MarkdownIt("commonmark").enable("table").parse(to_markdown(sheet))
    found = [said(token.children or []) for token in tokens if token.type == "inline"]
    assert found == ["a_b_c [x](y) <b>", "a", "*no* `co|de_`", "# no title - nothing"]


# -------------------- LaTeX


def test_latex_of_a_table() -> None:
    assert to_latex(SIMPLE) == (
        "% \\usepackage{booktabs,graphicx}\n"
        "\\begin{table}\n"
        "\\centering\n"
        "\\caption{A table}\n"
        "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%\n"
        "\\begin{tabular}{llrrr}\n"
        "\\toprule\n"
        "\\multicolumn{1}{c}{} & \\multicolumn{1}{c}{} & \\multicolumn{2}{c}{CIFAR-10, s = 10} & "
        "\\multicolumn{1}{c}{own} \\\\\n"
        "\\cmidrule(lr){3-4} \\cmidrule(lr){5-5}\n"
        "method & view & paper & ours & ours \\\\\n"
        "\\midrule\n"
        "FedAvg & \\texttt{pre} & 49.39 & \\textbf{50.12 $\\pm$ 0.30} & 7 \\\\\n"
        "2{*}CFT & \\texttt{post} &  & diverged & $-$1.50 \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}}\n"
        "\\par\\smallskip{\\footnotesize\\raggedright\n"
        "the first note\\par\n"
        "the second\\par}\n"
        "\\end{table}\n"
    )


def test_latex_without_groups_and_notes_has_no_lines_for_them() -> None:
    text = to_latex(Sheet("n", "t", ["a"], [["1"]]))
    assert "multicolumn" not in text
    assert "cmidrule" not in text
    assert "smallskip" not in text


def test_latex_escapes_what_it_would_take_for_something_else() -> None:
    assert to_latex(Sheet("n", "_%&#${}~^\\<>|[*]`λ", ["a"], [])).splitlines()[3] == (
        r"\caption{\_\%\&\#\$\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}\textless{}\textgreater{}"
        r"\textbar{}{[}{*}{]}\`{}$\lambda$}"
    )
    assert r"\caption{-{}-{}-x -1 \texttt{-{}-y\_}}" in to_latex(Sheet("n", "---x -1 `--y_`", ["a"], []))


def test_hostile_latex_has_no_character_with_a_meaning() -> None:
    lines = to_latex(hostile()).splitlines()
    rows = lines[lines.index(r"\midrule") + 1 : lines.index(r"\bottomrule")]
    assert len(rows) == len(HOSTILE)
    for line in rows:
        assert line.endswith(r" \\")
        cells = re.split(r"(?<!\\) & ", line.removesuffix(r" \\"))
        assert len(cells) == 3
        for cell in cells:
            left = re.sub(r"\\text(backslash|asciitilde|asciicircum|less|greater|bar)\{\}|\\`\{\}", "", cell)
            left = re.sub(r"\\text(bf|tt)\{", "{", re.sub(r"\\[_%&#${}]", "", left))
            assert not re.search(r"[\\_%&#$~^<>|`]", left)
            assert not re.match(r"[\[*]", left)
            assert left.count("{") == left.count("}")


# -------------------- CSV


def test_csv_of_a_table_has_head_and_rows_without_marks() -> None:
    assert to_csv(SIMPLE) == (
        'method,view,"CIFAR-10, s = 10: paper","CIFAR-10, s = 10: ours",own: ours\n'
        "FedAvg,pre,49.39,50.12 ± 0.30,7\n"
        "2*CFT,post,,diverged,-1.50\n"
    )


def test_csv_is_read_back_as_it_was() -> None:
    sheet = hostile()
    found = list(csv.reader(io.StringIO(to_csv(sheet), newline="")))
    expected = [[re.sub("\r\n?", "\n", cell) for cell in row] for row in (sheet.names(), *sheet.rows)]
    assert found == expected


# -------------------- terminals


def printed(sheet: Sheet, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width).print(to_rich(sheet), highlight=False)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_wide_terminal_has_one_table_between_title_and_notes() -> None:
    assert printed(SIMPLE, 80) == [
        "A table",
        "",
        "                 CIFAR-10,",
        "                    s = 10                  own",
        " method  view        paper          ours   ours",
        " ──────────────────────────────────────────────",
        " FedAvg  `pre`       49.39  50.12 ± 0.30      7",
        " 2*CFT   `post`                 diverged  -1.50",
        "",
        "the first note",
        "the second",
    ]


def test_a_narrow_terminal_has_several_tables_whose_groups_stay_together() -> None:
    lines = printed(SIMPLE, 40)
    rows = [line.split() for line in lines if line.startswith(" FedAvg")]
    assert rows == [["FedAvg", "`pre`"], ["FedAvg", "49.39", "50.12", "±", "0.30", "7"]]
    assert max(map(len, lines)) <= 40


def test_groups_without_names_of_rows_stand_below_each_other() -> None:
    head, row = ["place", "method"] * 2, ["1", "FedAvg", "1", "FedMate"]
    sheet = Sheet("n", "t", head, [row], groups=["balanced", "balanced", "own", "own"])
    assert [line.split() for line in printed(sheet, 20) if " 1 " in line] == [["1", "FedAvg"], ["1", "FedMate"]]
    assert [line.split() for line in printed(sheet, 80) if " 1 " in line] == [row]


def test_nothing_is_squeezed_where_not_even_one_group_fits() -> None:
    file = io.StringIO()
    Console(file=file, width=10).print(to_rich(SIMPLE), highlight=False, crop=False)
    assert "FedAvg      49.39  50.12 ± 0.30" in file.getvalue()
    assert [line.split()[1] for line in file.getvalue().splitlines() if "FedAvg" in line] == ["`pre`", "49.39", "7"]


def test_brackets_and_control_characters_are_shown_not_obeyed() -> None:
    text = "\n".join(printed(hostile(), 200))
    for word in ("[red]x[/red]", "*star* [opt]", "line break", "ret urn", "2*CFT ?[31m", "a\\|b"):
        assert word in text
    assert "\x1b" not in text


def test_what_stands_out_is_bold() -> None:
    file = io.StringIO()
    Console(file=file, width=100, force_terminal=True, color_system="standard").print(to_rich(SIMPLE), highlight=False)
    assert "\x1b[1m50.12 ± 0.30\x1b[0m" in file.getvalue()
    (other,) = [line for line in file.getvalue().splitlines() if "diverged" in line]
    assert "\x1b[1m" not in other


def test_a_table_without_rows_is_a_head() -> None:
    sheet = Sheet("n", "t", ["a", "b"], [])
    assert to_csv(sheet) == "a,b\n"
    assert read_markdown(to_markdown(sheet)) == [["a", "b"]]
    assert "a" in printed(sheet, 80)[2]
    assert "\\midrule\n\\bottomrule" in to_latex(sheet)
