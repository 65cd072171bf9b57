"""Columns are what pyarrow itself makes of the same values, without its look for pandas."""

import subprocess
import sys

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtbench_ray.workspace.columns import column

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
KINDS = {
    "string": (pyarrow.string(), TEXT),
    "int64": (pyarrow.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float64": (pyarrow.float64(), st.floats() | st.integers(-9, 9)),
    "bool": (pyarrow.bool_(), st.booleans()),
    "strings": (pyarrow.list_(pyarrow.string()), st.lists(TEXT, max_size=3)),
}


@settings(deadline=None)  # pyarrow imports pandas in the first example
@given(st.data())
def test_columns_are_those_of_pyarrow(data):
    kind, values = KINDS[data.draw(st.sampled_from(sorted(KINDS)))]
    some = data.draw(st.lists(values | st.none(), max_size=20))
    made = column(some, kind)
    made.validate(full=True)
    # Of two columns that hold NaN pyarrow says that they differ: their texts say what they hold.
    assert str(made.to_pylist()) == str(pyarrow.array(some, kind).to_pylist())
    assert made.null_count == some.count(None)


def test_a_number_of_more_than_64_bits_is_an_error():
    with pytest.raises(OverflowError):
        column([2**63], pyarrow.int64())


def test_a_table_is_written_without_pandas(tmp_path):
    script = """
import sys
from pathlib import Path
from mtbench_ray.schema import Turn
from mtbench_ray.workspace.parquet import write_table
write_table(Path(sys.argv[1]), Turn, [Turn("a", 1, "b", 1, "m", 0, "x", "ok")])
print("pyarrow" in sys.modules, "pandas" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "t.parquet")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["True", "False"]
