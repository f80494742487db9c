"""Tables of runs on a terminal, and tables for documents whatever their cells hold."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from fedmate.report.tables import (
    Table,
    adapted,
    comparison,
    show,
    to_csv,
    to_latex,
    to_markdown,
)


def figures(balanced: float | None, own: float | None) -> dict[str, Any]:
    return {"balanced": {"mean": balanced, "std": 1.0}, "own": {"mean": own, "std": 1.0}}


def summary(method: str, view: str, accuracy: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "method": method,
        "dataset": "digits",
        "clients": 20,
        "rounds": 50,
        "seed": 7,
        "accuracy": accuracy,
        "headline": {"view": view, "test": "balanced", "mean": 0.0},
        "bytes_up": 0,
        "bytes_down": 0,
        "seconds": 1.0,
        **changes,
    }


FEDAVG = summary(
    "fedavg",
    "pre",
    {"pre": figures(81.236, 60.5), "post": figures(70.0, 93.25), "global": figures(81.236, 11.0)},
    bytes_up=12_345_678,
    bytes_down=2_000_000,
    seconds=12.34,
)
LOCAL = summary("local", "post", {"pre": figures(40.5, 41.5), "post": figures(42.5, None), "global": None})


def printed(table: Table, width: int) -> list[str]:
    file = io.StringIO()
    show(table, Console(file=file, width=width))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_row_shows_accuracies_by_test_and_view_then_megabytes_and_seconds() -> None:
    lines = printed(comparison([FEDAVG, LOCAL]), 80)
    assert max(map(len, lines)) <= 80
    rows = {line.split()[0]: line.split()[1:] for line in lines if line}
    assert rows["fedavg"] == ["*81.24", "70.00", "81.24", "60.50", "93.25", "11.00", "12.3", "2.0", "12.3"]
    assert rows["local"] == ["40.50", "*42.50", "-", "41.50", "-", "-", "0.0", "0.0", "1.0"]


ADAPTED: dict[str, dict[str, float | None]] = {
    "before": {"balanced": 10.0, "own": None},
    "after": {"balanced": 12.346, "own": 100.0},
    "global": {"balanced": 90.0, "own": 80.5},
}


def test_a_new_client_has_a_row_for_each_model_and_the_words_are_explained() -> None:
    rows = [line.split() for line in printed(adapted(ADAPTED), 80) if line]
    assert rows[:2] == [["Accuracy", "in", "percent"], ["model", "balanced", "own"]]
    assert rows[3:6] == [["before", "10.00", "-"], ["after", "12.35", "100.00"], ["global", "90.00", "80.50"]]
    assert [row[0] for row in rows[6:]] == ["before:", "after:", "global:", "balanced:", "own:"]


# -------------------- documents

SIMPLE = Table(
    "simple",
    "A table",
    ["method", "view", "paper", "ours", "ours"],
    [["FedAvg", "`pre`", "49.39", "50.12 ± 0.30", "7"], ["2*CFT", "`post`", "", "diverged", "-1.50"]],
    ["the first note", "the second"],
    frozenset({(0, 3)}),
    ["", "", "CIFAR-10, s = 10", "CIFAR-10, s = 10", "own"],
)


def test_markdown_and_csv_of_a_table() -> None:
    assert to_csv(SIMPLE) == (
        'method,view,"CIFAR-10, s = 10: paper","CIFAR-10, s = 10: ours",own: ours\n'
        "FedAvg,pre,49.39,50.12 ± 0.30,7\n"
        "2*CFT,post,,diverged,-1.50\n"
    )
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


def test_latex_escapes_special_characters() -> None:
    assert to_latex(Table("n", "_%&#${}~^\\<>|[*]`λ", ["a"], [])).splitlines()[3] == (
        r"\caption{\_\%\&\#\$\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}\textless{}\textgreater{}"
        r"\textbar{}{[}{*}{]}\`{}$\lambda$}"
    )
    assert r"\caption{-{}-{}-x -1 \texttt{-{}-y\_}}" in to_latex(Table("n", "---x -1 `--y_`", ["a"], []))


def test_markdown_escapes_special_characters() -> None:
    text = to_markdown(Table("n", "a_b [x](y) <b>", ["a|b"], [["`a|b` *c* \\|"], ["line\nbreak\x1b"]], ["`a|b`"]))
    assert text.splitlines() == [
        *(r"### a\_b \[x](y) \<b>", "", r"| a\|b |", "| --- |"),
        *(r"| `a\|b` \*c\* \\\| |", "| line break? |", "", "- `a|b`"),
    ]
