"""Contents of a page made by hand, with every kind of row and texts that mean harm."""

import io

from mtbench_ray.reports.drawing import new_figure, style
from mtbench_ray.reports.page.contents import Contents, Item, Plot, Verdict
from mtbench_ray.reports.page.inline_svg import PAPER, inline
from mtbench_ray.reports.score_tables import Cell, Column, Grader, Table, TableRow
from mtbench_ray.schema import Judgment, Turn

HOSTILE = [
    "<script>window.harmed = 'script'</script>",
    "</script><script>window.harmed = 'closed'</script>",
    "<!-- <script> <!-- -->",
    "<img src=x onerror=\"window.harmed = 'onerror'\">",
    "<svg><script>window.harmed = 'svg'</script></svg><svg onload=\"window.harmed='onload'\">",
    "[a link](javascript:window.harmed='link') and [b](JaVa\tScript:window.harmed='b')",
    "<a href=\"javascript:window.harmed='raw'\">raw</a>",
    "[data](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    '![picture](http://127.0.0.1:9/track.png) ![onerror](x"onerror=window.harmed=1)',
    "<style>@import url(http://127.0.0.1:9/evil.css); * { display: none }</style>",
    "<link rel=stylesheet href=http://127.0.0.1:9/evil.css><base href=http://127.0.0.1:9/>",
    "<iframe srcdoc=\"<script>parent.harmed = 'iframe'</script>\"></iframe>",
    "<form action=http://127.0.0.1:9/><input autofocus onfocus=\"window.harmed='f'\"></form>",
    "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>",
    '<div id="index" class="x" style="position:fixed;inset:0">over all</div>',
    "```html\n<script>window.harmed = 'fence'</script>\n```\n~~~\" onclick=window.harmed=1\nx\n~~~",
    "$\\href{javascript:window.harmed='math'}{x}$ $\\style{x}{y}$ $\\text{<script>}$",
    "<math><mtext><style><img src=x onerror=window.harmed='mxss'></style></mtext></math>",
    "line\u2028separator\u2029paragraph \0 nul \ud800 lone \x1b[31m escape",
    "{{script}} {{texts}} ${x} `</pre></code>`",
    "a\tb\r\nc" + "[" * 200 + "(" * 200 + "*" * 200 + "`" * 199,
]
"""Texts of a model that must do nothing and must be readable."""

PROSE = """\
# A heading

Some *emphasis*, `code` and a list:

1. one
2. two **strong**

| left | right |
|:-----|------:|
| a    | 1     |

```python
def area(radius):
    return 3.14 * radius ** 2  # a comment
```

Inline $a^2 + b^2$ and \\(x_1\\), in a line of its own:

$$\\frac{1}{2} \\int_0^1 x\\,dx$$

It costs $5 and then $6.
"""

MODELS = ["org/first", "org/second", "third (temperature=0.5)"]
LONG = "A very long word. " * 60_000
"""More than a megabyte."""


def turn(model, item, number, content, **more):
    fields = {
        "answer_id": f"{model}-{item}",
        "turn": number,
        "benchmark": "own",
        "question_id": item,
        "model": MODELS[model],
        "sample": 0,
        "status": "ok",
        "output_tokens": 12,
        "latency_s": 1.25,
    }
    return Turn(content=content, **(fields | more))


def contents(texts=None, questions=6, title="own <b>workspace</b>"):
    """Three models, two graders, one failure; question 1 has hostile answers, 2 long ones."""
    judgments = {}
    items = []
    for number in range(1, questions + 1):
        item = Item(
            id=str(number),
            benchmark="own",
            category="math" if number % 2 else "writing",
            turns=(f"Question number {number}: how high is it?", "And how deep?"),
            references=("About $x$ metres.", "") if number == 1 else (),
        )
        for model in range(len(MODELS)):
            said = [f"Answer of {MODELS[model]} to {number}.\n\n{PROSE}", f"Deep {model}-{number}."]
            if number == 1:
                said = ["\n\n".join(texts or HOSTILE), "fine"]
            if number == 2:
                said = [LONG, "short"]
            found = [turn(model, number, at, text) for at, text in enumerate(said, start=1)]
            if (model, number) == (1, 3):
                found = [turn(model, number, 1, "cut", status="truncated", finish_reason="length",
                              reasoning="Let me think about <b>lighthouses</b>.")]  # fmt: skip
            item.answers[model] = {0: found}
            for at in (1, 2):
                value = float((model * 3 + number * at) % 10 + 1)
                failed = (model, number, at) == (1, 3, 2)
                name = "" if failed else f"j-{model}-{number}-{at}"
                item.verdicts.setdefault(model, []).append(
                    Verdict(0, at, 0, 0, "", "" if failed else f"{value:g}",
                            None if failed else value, "answer_error" if failed else "",
                            None, None, name)
                )  # fmt: skip
                if name:
                    judgments[name] = judgment(name, model, number, at, value)
        match = Verdict(1, 1, 0, 0, "depth", "A", 1.0, "", 1, True, f"m-{number}")
        judgments[f"m-{number}"] = judgment(f"m-{number}", 0, number, 1, 1.0)
        item.verdicts[0].append(match)
        items.append(item)
    rows = tuple(
        TableRow(at, name, (Cell(5.0 + at, 4.0, 8.5, 11, 12), Cell(6.0, None, None, 6, 6), None))
        for at, name in enumerate(MODELS)
    )
    columns = (Column("score"), Column("math", "math"), Column("writing", "writing"))
    return Contents(
        title=title,
        models=MODELS,
        graders=[Grader("judge-x · single", 1.0, 10.0), Grader("judge-y · pair", 0.0, 1.0)],
        tables=[Table(0, columns, rows)],
        items=items,
        judgment=judgments.__getitem__,
        plots=[plot("judge-x", "one"), plot("<i>two</i>", HOSTILE[1])],
    )


def plot(group, title):
    """A real drawing, in which a model has a hostile name."""
    with style("plots", paper=PAPER):
        figure = new_figure(5, 3, title)
        axis = figure.subplots()
        axis.plot([1, 2], [1, 3], label=HOSTILE[3])
        axis.set_xlabel("$" + HOSTILE[0])
        figure.legend()
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return Plot(group, title, inline(buffer.getvalue(), f"p-{len(title)}", title))


def judgment(name, model, item, number, value):
    hostile = HOSTILE[3] if item == 1 else "The answer is **clear**."
    return Judgment(
        judgment_id=name,
        match_id=name,
        mode="single",
        benchmark="own",
        question_id=item,
        category="math",
        turn=number,
        model=MODELS[model],
        judge="judge-x",
        judge_prompt="own-v1",
        status="ok",
        user_prompt=f"Rate this answer: {HOSTILE[1]}",
        text=f"{hostile} zebra-{model}-{item}-{number} Rating: [[{value:g}]]",
        label=f"{value:g}",
        value=value,
    )
