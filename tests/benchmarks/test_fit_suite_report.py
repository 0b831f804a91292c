"""The report of the fit suite says what the raw lines say, and where a reader has to be careful."""

import json
import re
import subprocess
import sys

from tests.benchmarks.lines import block, line, rounds
from tests.test_examples import ROOT

SUITE = ROOT / "benchmarks" / "fit_suite"


def report(lines, folder) -> str:
    raw = folder / "raw.jsonl"
    raw.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return subprocess.run([sys.executable, SUITE / "report.py", raw], capture_output=True, text=True, check=True).stdout


def section(text: str, title: str) -> str:
    return re.search(rf"^##+ {re.escape(title)}.*?\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)[1]


def row(text: str, first: str) -> list[str]:
    """The cells of the row of a table that begins with that."""
    return [cell.strip() for cell in re.search(rf"^\| {re.escape(first)} \|(.*)\|$", text, re.MULTILINE)[1].split("|")]


def test_ratios_are_those_within_a_round(tmp_path):
    lines = rounds("mlp", block(10, 5), block(40, 20), block(10, 4))  # the machine was slow in the second
    cells = row(section(report(lines, tmp_path), "Whole fit"), "mlp")
    assert cells[-4:-1] == ["5.00 (4.00 - 20.0)", "2.00x (2.00x - 2.50x)", "default"]


def test_the_best_of_four_is_the_one_with_the_lowest_median(tmp_path):
    lines = rounds("mlp", *[block(10, 5, spe32_forced=6)] * 2, block(10, 5, spe32_forced=6, forced=4))
    assert row(section(report(lines, tmp_path), "Whole fit"), "mlp")[-2:] == ["spe32_forced", "1.20x (1.20x - 1.20x)"]


def test_goals_name_the_models_that_miss_them(tmp_path):
    lines = rounds("mlp", block(10, 5), kind="short") + rounds("cnn", block(10, 11), kind="short")
    goals = section(report(lines, tmp_path), "Goals")
    assert "lowest 0.91x (cnn) | NOT met: cnn 0.91x" in goals
    assert "geometric mean: at least 1.30x | 1.35x | met" in goals
    assert "60 s" not in goals  # no long fits, no goal of them


def test_goals_of_long_fits(tmp_path):
    lines = rounds("mlp", block(60, 50, forced=55), kind="long", aim=60)
    goals = section(report(lines, tmp_path), "Goals")
    assert "Whole fit of about 60 s, ours to default, geometric mean: at least 1.50x | 1.20x | NOT met" in goals
    assert "ours to the best of four, geometric mean: at least 1.15x | 1.10x | NOT met" in goals
    assert "Steady epoch of the long fit, ours to default, geometric mean: at least 1.60x | 1.20x | NOT met" in goals


def test_rounds_that_are_not_equal_are_said(tmp_path):
    lines = rounds("mlp", block(10, 5), block(10, 5)) + rounds("cnn", block(10, 5))
    assert "Rounds of the short fits are NOT equal: mlp 2, cnn 1." in report(lines, tmp_path)


def test_noise_is_said(tmp_path):
    text = report(rounds("mlp", block(10, 5), block(15, 5)), tmp_path)
    assert "default's slowest short fit took 1.50x of its fastest" in text


def test_what_was_left_out_is_said_with_its_reason(tmp_path):
    lines = rounds("vae", block(10, 5))
    stopped = line("vae", "jax", 0, failed="stopped after 350 s")
    del stopped["seconds"]
    text = section(report([*lines, stopped], tmp_path), "Read with care")
    assert "Failed: vae, jax, short, 1x: stopped after 350 s." in text
    assert "the same limit for every model: 350 s in short fits" in text


def test_a_note_on_a_block_is_gone_with_the_block(tmp_path):
    lines = rounds("cnn", block(10, 5), kind="long", aim=60, block="2026-11-25T15:00:36+00:00")
    assert "cnn, long: this block ran three times." in section(report(lines, tmp_path), "Read with care")
    again = rounds("cnn", block(10, 5), kind="long", aim=60, block="2026-11-27T15:00:36+00:00")
    assert "three times" not in report([*lines, *again], tmp_path)


def test_predicts_from_before_they_computed_two_batches_are_named(tmp_path):
    older, newer = "2026-11-25T14:00:00+00:00", "2026-11-25T15:00:00+00:00"
    lines = rounds("mlp", block(10, 5), block=older) + rounds("vae", block(10, 5), block=older)
    assert "Later `predict` of all models: measured before" in report(lines, tmp_path)
    lines += rounds("cnn", block(10, 5), block=newer)
    assert "Later `predict` of all models but cnn: measured before" in report(lines, tmp_path)
    lines += rounds("vae", block(10, 5), block=newer)
    assert "Later `predict` of mlp: measured before" in report(lines, tmp_path)
    lines += rounds("mlp", block(10, 5), block=newer)
    assert "Later `predict` of" not in report(lines, tmp_path)


def test_a_block_that_was_measured_again_counts_once(tmp_path):
    lines = rounds("mlp", block(10, 5)) + rounds("mlp", block(30, 10), block="2026-11-23T08:00:00+00:00")
    assert row(section(report(lines, tmp_path), "Whole fit"), "mlp")[-3] == "3.00x"


def test_parts_of_the_gain_are_shown_apart(tmp_path):
    lines = rounds("mlp", block(12, 2, ours_steps=8, ours_graph=4))
    assert row(section(report(lines, tmp_path), "Where the gain comes from"), "mlp") == [
        "1.50x",
        "2.00x",
        "2.00x",
        "6.00x",
    ]


def verdict(tmp_path, plain, ours, **others) -> str:
    lines = []
    for number, (default, mine) in enumerate(zip(plain, ours, strict=True)):
        lines.append(line("mlp", "default", 10, number, losses=[1.0, default]))
        lines.append(line("mlp", "ours", 10, number, losses=[1.0 if default == mine else 0.9, mine]))
        lines += [line("mlp", name, 10, number, losses=[0.9, losses[number]]) for name, losses in others.items()]
    return row(section(report(lines, tmp_path), "Short fits"), "mlp")[-1]


def test_equal_losses(tmp_path):
    assert verdict(tmp_path, [0.2, 0.21, 0.22], [0.2, 0.21, 0.22]) == "equal"


def test_losses_equal_to_rounding(tmp_path):
    assert verdict(tmp_path, [0.2, 0.21, 0.22], [0.20001, 0.21001, 0.21999]).startswith("rounding")


def test_losses_to_both_sides_scatter(tmp_path):
    assert verdict(tmp_path, [0.02, 0.02, 0.02], [0.01, 0.03, 0.021]).startswith("scatters, -50.0% ... +50.0%")


def test_losses_as_far_off_as_those_of_keras_own_xla_scatter(tmp_path):
    plain, ours, forced = [0.02, 0.02, 0.02], [0.022, 0.023, 0.022], [0.02, 0.024, 0.02]
    assert verdict(tmp_path, plain, ours, forced=forced).startswith("scatters")


def test_losses_off_to_one_side_are_a_gap(tmp_path):
    assert verdict(tmp_path, [0.02, 0.02, 0.021], [0.024, 0.025, 0.026]).startswith("**gap**")
    raw = [json.loads(each) for each in (tmp_path / "raw.jsonl").read_text().splitlines()]
    assert "with a gap to plain Keras': mlp, short (+20.0% ... +25.0%)" in report(raw, tmp_path)
