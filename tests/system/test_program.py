"""When what was worked out before counts as worked out by this very program."""

import pytest

from mtbench_ray.system import program as module

fresh = module.program.__wrapped__


def test_two_processes_of_one_program_are_the_same():
    assert fresh() == fresh()


@pytest.mark.parametrize(
    ("name", "value"),
    [("platform", None), ("version", lambda name: "0.0.1")],
)
def test_another_python_and_another_package_are_another_program(name, value, monkeypatch):
    before = fresh()
    if name == "platform":
        monkeypatch.setattr(module.platform, "python_version", lambda: "3.99.0")
    else:
        monkeypatch.setattr(module, name, value)
    assert fresh() != before


def test_another_line_of_the_package_is_another_program(tmp_path, monkeypatch):
    (tmp_path / "__init__.py").write_text("")
    monkeypatch.setattr(module.mtbench_ray, "__file__", str(tmp_path / "__init__.py"))
    before = fresh()
    (tmp_path / "__init__.py").write_text("x = 1")
    assert fresh() != before


def test_where_others_bring_benchmarks_no_process_trusts_another(monkeypatch):
    monkeypatch.setattr(module, "entry_points", lambda group: [group])
    assert fresh() != fresh()
