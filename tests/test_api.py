"""From Python: the same settings, rows and mistakes as on the command line."""

import asyncio
import subprocess
import sys

import pyarrow
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

import mtbench_ray
from mtbench_ray import api
from mtbench_ray.cli.hydra_app import compose
from mtbench_ray.errors import UserError

pytestmark = pytest.mark.runs


@pytest.fixture
def usual(stub, questions, references, tmp_path):
    return {
        "engine": "fake",
        "question_path": str(questions),
        "reference_path": str(references),
        "workspace": str(tmp_path / "a work, of [mine]"),
        "judge.model": "stub",
        "judge.base_url": stub.url,
        "quiet": True,
    }


def test_evaluate_gives_scores_as_arrow_and_pandas_and_rows(usual, stub, capsys):
    result = mtbench_ray.evaluate(model="some/model", judge="openai", **usual)
    assert result.complete
    (row,) = result.evaluations
    assert row["model"] == "some/model"
    scores = result.scores()
    assert isinstance(scores, pyarrow.Table)
    (whole,) = [r for r in scores.to_pylist() if r["dimension"] == "all"]
    assert (whole["scored"], whole["planned"]) == (8, 8)
    frame = result.pandas()
    assert len(frame) == scores.num_rows > 3
    assert set(frame[frame.dimension == "category"].name) == {"math", "writing"}
    rows = list(result.rows())
    assert len(rows) == 8
    assert sum(r["value"] for r in rows) / 8 == pytest.approx(whole["mean"])
    assert result.answers().num_rows == 8
    assert "some/model" in str(result)
    assert "8/8" in result._repr_markdown_()
    assert capsys.readouterr().out == "", "what is returned is not printed too"
    calls = stub.stats()["calls"]
    again = mtbench_ray.evaluate(model="some/model", judge="openai", **usual)
    assert again.evaluations == result.evaluations
    assert stub.stats()["calls"] == calls


def test_several_models_are_one_sweep_and_a_result_has_those_asked_for(usual):
    mtbench_ray.evaluate(model="other", judge="openai", limit=1, **usual)
    result = mtbench_ray.evaluate(model=["a", "b"], judge="openai", limit=2, **usual)
    assert {row["model"] for row in result.evaluations} == {"a", "b"}
    assert set(result.pandas().model) == {"a", "b"}
    assert set(result.judgments()["model"].to_pylist()) == {"a", "b"}
    whole = mtbench_ray.report(usual["workspace"])
    assert {row["model"] for row in whole.evaluations} == {"a", "b", "other"}
    some = mtbench_ray.report(usual["workspace"], model="oth*")
    assert {row["model"] for row in some.evaluations} == {"other"}


def test_it_works_inside_a_running_event_loop_and_beside_one(usual):
    async def cell():
        first = mtbench_ray.evaluate(model="in", judge="openai", **usual)  # as a notebook's cell
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        second = await asyncio.to_thread(
            mtbench_ray.evaluate, model="beside", judge="openai", **usual
        )
        ticking.cancel()
        return first, second, ticks

    first, second, ticks = asyncio.run(cell())
    assert first.complete
    assert second.complete
    assert ticks > 3, "the loop went on"


def test_a_failed_judge_is_a_result_and_not_complete(usual, stub):
    stub.script.always = "401"
    result = mtbench_ray.evaluate(model="m", judge="openai", **usual)
    assert (result.exit_code, result.complete) == (3, False)
    assert set(result.pandas().scored) == {0}
    assert result.pandas()["mean"].isna().all()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"sampling": {"max_token": 4}}, "sampling.max_token"),
        ({"limit": "many"}, "limit"),
        ({"judge": "gpt-4o", "judge.base_url": "http://10.0.0.1/v1",
          "judge.api_key_env": "NOT_SET_HERE"}, "NOT_SET_HERE"),
    ],
)  # fmt: skip
def test_a_mistake_is_an_exception_with_its_hint(usual, more, said, capsys):
    kwargs = {"judge": "openai"} | usual | more
    with pytest.raises(UserError, match=said) as error:
        mtbench_ray.evaluate(model="m", **kwargs)
    assert str(error.value)
    assert "error:" not in capsys.readouterr().err


def test_judge_rates_answers_of_your_own(usual, stub):
    here = {key: usual[key] for key in ("judge.model", "judge.base_url")}
    verdicts = mtbench_ray.judge(
        ["Name a prime.", "And a larger one."], ["Five.", "Seven."], judge="openai", **here
    )
    assert [v.status for v in verdicts] == ["ok", "ok"]
    assert all(v.value == float(v.label) for v in verdicts)
    assert f"Rating: [[{verdicts[0].label}]]" in verdicts[0].text
    prompts = ["\n".join(m["content"] for m in body["messages"]) for body in stub.seen.bodies]
    assert len(prompts) == 2
    assert all("Five." in prompt for prompt in prompts)
    (one,) = mtbench_ray.judge("Name a prime.", "Nine.", judge="openai", **here)
    assert one.row["turn"] == 1
    with pytest.raises(UserError, match="2 turns and 1 answers"):
        mtbench_ray.judge(["a", "b"], ["c"], judge="openai", **here)


def test_judge_shows_the_reference_and_keeps_a_workspace(usual, stub, tmp_path):
    here = {key: usual[key] for key in ("judge.model", "judge.base_url")}
    asked = {"category": "math", "reference": "Twelve it is.", "workspace": tmp_path / "kept"}
    mtbench_ray.judge("What is 7 + 5?", "12", judge="openai", **asked, **here)
    (body,) = stub.seen.bodies
    assert "Twelve it is." in "".join(m["content"] for m in body["messages"])
    mtbench_ray.judge("What is 7 + 5?", "12", judge="openai", **asked, **here)
    assert len(stub.seen.bodies) == 1, "the same again costs nothing"


def test_plan_says_what_it_would_cost_and_does_nothing(usual, stub, tmp_path):
    text = mtbench_ray.plan(model="m", judge="openai", **usual)
    assert "turns to answer" in text
    assert "0/8" in text
    assert not (tmp_path / "a work, of [mine]").exists()
    assert stub.stats()["calls"] == 0


def test_a_workspace_without_results_is_told(tmp_path):
    with pytest.raises(UserError):
        mtbench_ray.report(tmp_path)


TEXTS = st.text(
    st.characters(codec="ascii", exclude_characters="\n\r\t\x0b\x0c$", exclude_categories=["Cc"]),
    min_size=1,
)


@settings(deadline=None, max_examples=50)
@given(TEXTS)
def test_any_text_is_read_by_hydra_as_it_is(text):
    def read(value):
        return OverridesParser.create().parse_override(f"x={api._text(value)}").value()

    assert str(getattr(read(text), "text", read(text))) == text
    assert [getattr(part, "text", part) for part in read([text, "b"])] == [text, "b"]


@pytest.mark.parametrize("text", ["a b", "1e5", "null", "C:\\x\\", "it's, {so} [called]", "true"])
def test_settings_reach_the_run_as_they_are(text):
    args = api.arguments(
        text, None, {"question_path": text, "sampling": {"seed": 3}, "quiet": False,
                     "engine": {"args": {"x": text, "n": 2}}, "baseline": None,
                     "categories": ["math", "writing"]},
    )  # fmt: skip
    (config,) = compose(args)
    assert config.model.path == text
    assert config.question_path == text
    assert config.sampling.seed == 3
    assert config.quiet is False
    assert config.engine.args == {"x": text, "n": 2}
    assert config.baseline is None
    assert config.categories == ["math", "writing"]


def test_the_package_imports_nothing_heavy_and_is_typed():
    code = (
        "import sys, mtbench_ray; assert 'mtbench_ray.config' not in sys.modules;"
        "mtbench_ray.evaluate;"
        "bad = {'ray', 'torch', 'hydra', 'pyarrow', 'openai'} & set(sys.modules);"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    from importlib import resources

    assert resources.files("mtbench_ray").joinpath("py.typed").is_file()
