"""``list benchmarks``."""

from mtbench_ray.cli.main import main


def test_benchmarks_are_listed_with_size_judge_calls_and_licence(capsys):
    assert main(["list", "benchmarks"]) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert rows["mt_bench"][1:5] == ["80", "yes", "160", "Apache-2.0"]
    assert rows["ifeval"][1:5] == ["541", "no", "0", "Apache-2.0"]
    assert rows["ifbench"][1:6] == ["300", "no", "0", "ODC-BY", "1.0"]
    assert rows["vicuna"][1:5] == ["80", "yes", "80", "Apache-2.0"]
