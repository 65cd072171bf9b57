"""The command line: verbs ``run`` (the default), ``plan``, ``report``, ``view``, ``list``,
``import``, ``export``."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from mtbench_ray.benchmarks import benchmarks
from mtbench_ray.cli.help import HELP, USAGE, version
from mtbench_ray.cli.hydra_app import compose_and_run, presets
from mtbench_ray.cli.overrides import config_folders
from mtbench_ray.config import RunConfig
from mtbench_ray.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, UserError


def main(argv: Sequence[str]) -> int:
    """Run one command line.

    Returns:
        Exit code: 0 all scored, 2 usage or set-up error, 3 finished with failures, 130 interrupted.
    """
    try:
        code = dispatch(list(argv))
        sys.stdout.flush()  # here, where a closed pipe is caught
        return code
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe went away (`... | head`): nothing is wrong here.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


def dispatch(args: list[str]) -> int:
    """Run one command line; returns its exit code.

    Raises:
        UserError: A mistake in what was typed, or the work could not be done.
    """
    verbs: dict[str, Callable[[list[str]], int]] = {
        "run": lambda rest: compose_and_run(rest, plan_only=False),
        "plan": lambda rest: compose_and_run(rest, plan_only=True),
        "report": _report,
        "view": _view,
        "list": _list,
        "import": _import,
        "export": _export,
    }
    if "--version" in args:
        print(version())
        return EXIT_OK
    if not args or args[0] == "help" or {"--help", "-h"} & set(args):
        asked = [arg for arg in args if arg in HELP]
        print(HELP[asked[-1]] if asked else USAGE)
        return EXIT_OK if args else EXIT_USAGE
    if args[0] in verbs:
        return verbs[args[0]](args[1:])
    if "=" not in args[0] and not args[0].startswith(("-", "~", "+")):
        raise UserError(
            f"'{args[0]}' is neither a verb nor a setting",
            f"verbs are {', '.join(verbs)}; settings are written key=value",
        )
    return verbs["run"](args)


def _list(args: list[str]) -> int:
    groups = {
        "benchmarks": "",
        "models": "model",
        "judges": "judge",
        "engines": "engine",
        "experiments": "experiment",
    }
    if args[:1] == ["checkpoints"]:
        return _list_checkpoints(args[1:])
    folders = config_folders(args)
    words = [arg for arg in args if arg in groups]
    rest = {arg for arg in args if not arg.startswith(("--config-dir", "-cd"))} - set(words)
    if len(words) != 1 or rest - set(map(str, folders)):
        raise UserError("list what?", f"list {' | '.join(groups)}, or list checkpoints root=DIR")
    if not groups[words[0]]:
        return _list_benchmarks()
    rows = presets(folders)[groups[words[0]]]
    width = max(map(len, rows))
    for name, text in rows.items():
        print(f"{name:<{width}}  {text}")
    return EXIT_OK


def _list_checkpoints(args: list[str]) -> int:
    """Step, folder, and whether ``model=checkpoints`` takes it, or why not."""
    from mtbench_ray.config import ModelConfig
    from mtbench_ray.models.arrivals import once
    from mtbench_ray.models.discovery import find
    from mtbench_ray.reports.tables import label

    plain = [arg.removeprefix("model.") for arg in args]
    words, values = _options(plain, {"root": "", "runs": "", "pattern": ""})
    if words or not values["root"]:
        raise UserError("list checkpoints of which folder?", "list checkpoints root=DIR")
    model = ModelConfig(
        root=values["root"], runs=values["runs"] or None, pattern=values["pattern"] or None
    )
    seen = once(model)
    if not seen:
        find(model)  # says what may help
    rows = [("step", "checkpoint", "")]
    tools = {}
    for one in seen:
        found = one.candidate
        step = "last" if found.step is None else str(found.step)
        rows.append((step, label(str(found.model)), one.reason or "taken"))
        if one.hint:
            tools[one.reason] = one.hint
    widths = [max(len(row[place]) for row in rows) for place in range(2)]
    for step, folder, what in rows:
        print(f"{step:>{widths[0]}}  {folder:<{widths[1]}}  {what}".rstrip())
    for reason, tool in tools.items():
        print(f"{reason}: convert it first: {tool}")
    return EXIT_OK


def _list_benchmarks() -> int:
    """Name, size, judge, calls of it for a model, licence, and what it is."""
    rows = [("benchmark", "questions", "judge", "calls a model", "licence", "")]
    for name, one in benchmarks().items():
        checked = bool(one.graders[0].checker)
        calls = 0 if checked else one.calls or one.size * one.turns
        about = one.about + f"; protocol=official: {one.official}" * bool(one.official)
        rows.append(
            (name, str(one.size or "?"), "no" if checked else "yes",
             str(calls) if calls or checked else "?", one.licence or "?", about)
        )  # fmt: skip
    widths = [max(len(row[place]) for row in rows) for place in range(6)]
    for row in rows:
        print("  ".join(f"{text:<{size}}" for text, size in zip(row, widths, strict=True)).rstrip())
    return EXIT_OK


_TAKE_NAMES = ("agreement", "best", "compare", "judges")


def _options(args: Sequence[str], allowed: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Split ``key=value`` words from the others, for the verbs that need no model or judge."""
    words, values = [], dict(allowed)
    for arg in args:
        key, equals, value = arg.partition("=")
        if not equals:
            if arg.startswith("-"):
                raise UserError(f"'{arg}' is not an option", "settings are written key=value")
            words.append(arg)
        elif key.removeprefix("report.") in allowed:
            if key == "workspace" and not value.strip():
                raise UserError("workspace= is empty", "write workspace=DIR")
            values[key.removeprefix("report.")] = value
        elif words[:1] in (["best"], ["compare"], ["agreement"], ["judges"]) and not arg.startswith(
            "-"
        ):
            words.append(arg)  # the name of a model, a judge or a file may hold anything
        else:
            near = difflib.get_close_matches(key, allowed, n=1, cutoff=0.75)
            raise UserError(
                f"no setting is called '{key}' here",
                f"did you mean {near[0]}=?" if near else f"there are: {', '.join(allowed)}",
            )
    return words, values


def _report(args: list[str]) -> int:
    from mtbench_ray.reports.main import report

    words, values = _options(
        args,
        {
            "workspace": RunConfig.workspace,
            "format": "table",
            "parity": "safe",
            "mode": "",
            "resamples": "2000",
            "seed": "0",
            "error": "ci95",
            "by": "",
            "out": "",
            "model": "",
            "judge": "",
            "category": "",
            "benchmark": "",
            "gate": "",
            "detect": "",
            "metric": "",
            "steps": "",
            "name_pattern": "",
            "target": "",
            "answer_price": "",
            "data": "",
            "baseline": "",
            "run": "",
        },
    )
    last = values.pop("workspace")
    return report(words, workspaces=_workspaces(args) or [last], **values)


def _workspaces(args: Sequence[str]) -> list[str]:
    """All that ``workspace=`` names; several are read as one."""
    typed = [arg.removeprefix("report.").partition("=") for arg in args]
    return [value for key, _, value in typed if key == "workspace"]


def _view(args: list[str]) -> int:
    from mtbench_ray.judges.base import ScoreOptions
    from mtbench_ray.reports.page.view import view

    words, values = _options(args, {"workspace": RunConfig.workspace, "port": ""})
    if words:
        raise UserError(f"view takes no '{words[0]}'", "view workspace=DIR")
    return view(_workspaces(args) or [values["workspace"]], values["port"], ScoreOptions())


def _import(args: list[str]) -> int:
    from mtbench_ray.reports.main import import_files

    if args[:1] == ["votes"]:
        return _import_votes(args)
    if "answers" in args:
        return _import_answers(args)
    words, values = _options(
        args, {"workspace": RunConfig.workspace, "question_path": "", "baseline": ""}
    )
    if len(words) != 2 or words[0] != "fastchat":
        raise UserError(
            "import what?",
            "import fastchat DIR workspace=W, import answers FILE benchmark=NAME model=LABEL, or"
            " import votes",
        )
    values["question_path"] = os.path.expanduser(values["question_path"])
    return import_files(os.path.expanduser(words[1]), **values)


def _import_answers(args: list[str]) -> int:
    from mtbench_ray.planning.answer_files import import_answers
    from mtbench_ray.reports.tables import label
    from mtbench_ray.workspace.workspace import Workspace

    words, values = _options(
        args,
        {"workspace": RunConfig.workspace, "benchmark": "", "model": "", "question_path": ""},
    )
    if len(words) != 2 or words[0] != "answers" or not (values["benchmark"] and values["model"]):
        raise UserError("import which answers?", "import answers FILE benchmark=NAME model=LABEL")
    name, model = values["benchmark"], values["model"]
    with Workspace.open(values["workspace"], write=True) as workspace:
        found = import_answers(
            Path(words[1]).expanduser(),
            workspace,
            benchmark=name,
            model=model,
            question_path=os.path.expanduser(values["question_path"]) or None,
        )
    print(f"{label(model)}: {found.answers} answers to {name}, {found.new} new"
          + (f"; {found.without} questions have none" if found.without else ""))  # fmt: skip
    more = [f"question_path={values['question_path']}"] * bool(values["question_path"])
    more += [f"sampling.samples={found.samples}"] * (found.samples > 1)
    next_line = ["stage=judge", f"benchmark={name}", f"model={model}", *more]
    print(f"grade them: python -m mtbench_ray {' '.join(next_line)} judge=JUDGE"
          f" workspace={values['workspace']}")  # fmt: skip
    return EXIT_OK


def _import_votes(args: list[str]) -> int:
    from mtbench_ray.planning.votes import import_votes, vote_files
    from mtbench_ray.workspace.workspace import Workspace

    words, values = _options(
        args, {"workspace": RunConfig.workspace, "benchmark": "mt_bench", "question_path": ""}
    )
    benchmark, questions = values["benchmark"], os.path.expanduser(values["question_path"])
    with Workspace.open(values["workspace"], write=True) as workspace:
        found = import_votes(
            vote_files(benchmark, words[1:]),
            workspace,
            benchmark=benchmark,
            question_path=questions or None,
        )
    new = sum(one.new for one in found.values())
    count = sum(one.answers for one in found.values())
    print(f"{len(found)} models, {count} answers to {benchmark}, {new} new")
    more = [f"question_path={questions}"] * bool(questions)
    line = ["-m", "stage=judge", f"benchmark={benchmark}", f"'model={','.join(found)}'", *more]
    print(f"judge them: python -m mtbench_ray {' '.join(line)} judge=JUDGE"
          f" workspace={values['workspace']} (mode=pairwise-all: two by two), then"
          f" `report card workspace={values['workspace']}`")  # fmt: skip
    return EXIT_OK


def _export_answers(folder: Path, place: str) -> int:
    from mtbench_ray.planning.answer_files import export_answers
    from mtbench_ray.reports.results import current
    from mtbench_ray.workspace.workspace import Workspace

    with Workspace.open(place, write=False) as workspace:
        paths = export_answers(workspace, folder, current(workspace))
    if not paths:
        raise UserError(f"the workspace {place} holds no answers", "run something first")
    for path in paths:
        print(path)
    return EXIT_OK


def _export(args: list[str]) -> int:
    from mtbench_ray.reports.main import EXPORTS, export_files

    filters = dict.fromkeys(("model", "judge", "category", "benchmark", "mode"), "")
    words, values = _options(args, {"workspace": RunConfig.workspace} | filters)
    if len(words) != 2:
        raise UserError("export what?", f"export {'|'.join(EXPORTS)}|answers DIR workspace=W")
    if words[0] == "answers":
        return _export_answers(Path(words[1]).expanduser(), values["workspace"])
    return export_files(words[0], os.path.expanduser(words[1]), **values)
