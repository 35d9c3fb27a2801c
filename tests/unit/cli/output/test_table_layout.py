"""How a table is fitted to a terminal, and what a pipe gets."""

from __future__ import annotations

import pytest

from enginebay.cli.output import console
from enginebay.cli.output.table_layout import Column, render_table, render_tsv, to_cells, wrap_text
from tests.unit.cli.output.rendered_tables import WIDTHS, check_table

NAMES = [Column(name) for name in ("name", "engine", "state", "running", "waiting", "memory", "since", "last switch")]
ROW = ["qwen3-coder-30b", "llamacpp 0.3.16", "awake, pinned", "12", "345", "17.3 GiB", "2 min", "61.8 s (load 61.5 s)"]
PATH = "/srv/enginebay/environments/llamacpp-0.3.16/lib/python3.12/site-packages"


@pytest.mark.parametrize("width", [40, *WIDTHS])
def test_nothing_is_lost_or_broken(width: int) -> None:
    check_table(NAMES, [ROW, ["m", *ROW[1:]]], width)


def test_a_table_with_room_is_one_line_per_row() -> None:
    header, body = render_table(NAMES, [ROW], 120)
    assert len(header) == len(body) == 1 and header[0].startswith("NAME             ENGINE           STATE")


def test_columns_without_room_follow_their_row() -> None:
    _, (row, details) = render_table(NAMES, [ROW], 80)
    assert row.split() == " ".join(ROW[:6]).split()
    assert details == "  since: 2 min  last switch: 61.8 s (load 61.5 s)"


def test_columns_of_a_rank_give_way_first_and_together() -> None:
    columns = [Column("name"), Column("a", rank=1), Column("b", rank=1), Column("verdict")]
    _, (row, details) = render_table(columns, [["x" * 20, "y" * 20, "z" * 20, "valid"]], 60)
    assert row.split() == ["x" * 20, "valid"] and details == f"  a: {'y' * 20}  b: {'z' * 20}"


def test_text_wraps_between_words() -> None:
    columns = [Column("preset"), Column("settings")]
    _, body = render_table(columns, [["batch", "one two three " * 10]], 60)
    assert len(body) > 1 and all(line.strip().split()[-1] in ("one", "two", "three") for line in body)


def test_a_long_path_follows_its_row_and_leaves_the_others_aligned() -> None:
    columns = [Column("engine"), Column("version"), Column("where")]
    path = "/srv/enginebay/environments/llamacpp-0.3.16"
    shown = check_table(columns, [["llamacpp", "0.3.16", path], ["vllm", "-", "not installed"]], 60)
    assert shown.splitlines()[1:] == ["llamacpp  0.3.16", f"  where: {path}", "vllm      -        not installed"]


def test_a_column_whose_values_all_follow_has_no_header() -> None:
    columns = [Column("engine"), Column("version"), Column("where")]
    assert render_table(columns, [["vllm", "0.32", PATH]], 80)[0] == ["ENGINE  VERSION"]


def test_a_word_wider_than_the_line_breaks_after_a_separator() -> None:
    assert wrap_text(PATH, 40) == ["/srv/enginebay/environments/llamacpp-0.", "3.16/lib/python3.12/site-packages"]
    assert wrap_text("a" * 10, 4) == ["aaaa", "aaaa", "aa"]


def test_wide_characters_count_twice() -> None:
    columns = [Column("name"), Column("value")]
    header, body = render_table(columns, [["模型", "x"], ["ab", "y"]], 80)
    assert body == ["模型  x", "ab    y"] and header == ["NAME  VALUE"]


def test_details_have_their_own_line_even_with_room() -> None:
    columns = [Column("check"), Column("fix", detail=True)]
    assert render_table(columns, [["gpu", "install a driver"], ["ram", ""]], 80)[1] == [
        "gpu",
        "  install a driver",
        "ram",
    ]


def test_a_pipe_gets_tabs_and_nothing_else() -> None:
    cells = [to_cells(["a\tb\nc", None, 3]), ["x" * 300, "", "4"]]
    assert render_tsv([Column("name"), Column("size"), Column("n")], cells) == [
        "NAME\tSIZE\tN", "a b c\t\t3", f"{'x' * 300}\t\t4",
    ]  # fmt: skip


def test_no_terminal_means_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_table(("name", "path"), [("m", PATH * 3)])
    console.print_summary("1 model")
    out, err = capsys.readouterr()
    assert (out, err) == (f"NAME\tPATH\nm\t{PATH * 3}\n", "1 model\n")
