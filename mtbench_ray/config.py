"""All settings, as dataclasses; the docstring under a field is its documentation.

A *science* setting changes a result: it is hashed into content ids and stored beside the result.
Every other setting is an *operations* setting (how fast, where, how shown) and may change between
attempts at the same work. :func:`science` gives the first kind.

Nothing here imports Hydra or OmegaConf: :mod:`mtbench_ray.cli.hydra_app` turns a composed config
into these classes, and plain instances of them travel to actors.
"""

from __future__ import annotations

# _science gives fields, not values, so RUF009 does not apply.
# ruff: noqa: RUF009
import dataclasses
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from mtbench_ray.system.redact import without_secrets

DEMO_MODEL = "smollm2-135m"
"""Name of the embedded model, as ``model=`` and as ``judge.model=`` of the local judge."""


def _science(default: Any) -> Any:
    """A field whose value changes results."""
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata={"science": True})
    return field(default=default, metadata={"science": True})


def science(settings: Any) -> dict[str, Any]:
    """The settings of a dataclass instance that change a result, as plain JSON values.

    A setting that has its default is left out, so that a setting which is new in a later version
    leaves the ids of all earlier rows as they are. :func:`science_defaults` has the others. What
    stands under the name of a secret in a free-form setting changes none.
    """
    found = {}
    for name, default in _science_fields(type(settings)):  # type: ignore[arg-type]
        value = getattr(settings, name)
        if isinstance(value, dict):
            value = without_secrets(value)
        if value != default:
            found[name] = value
    return found


def science_defaults(kind: type[Any]) -> dict[str, Any]:
    """The defaults that :func:`science` leaves out, of a settings class."""
    return dict(_science_fields(kind))  # type: ignore[arg-type]


@cache
def _science_fields(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    """Asked for with every judge call: reading the fields each time costs more than the rest."""
    return tuple(
        (f.name, f.default if f.default_factory is dataclasses.MISSING else f.default_factory())
        for f in dataclasses.fields(kind)
        if f.metadata.get("science")
    )


@dataclass
class ModelConfig:
    """The model under test."""

    path: str = _science("")
    """Hugging Face id or local folder, as typed. ``model=<path>`` sets it."""
    name: str = ""
    """Label in tables and files; the path as typed where empty."""
    revision: str | None = _science(None)
    """Branch, tag or commit on the hub."""
    embedded: bool = False
    """The demo model that ``assets`` fetches and converts; ``path`` is then its preset name."""
    adapter: str | None = _science(None)
    """Folder of a LoRA adapter on top of ``path``."""
    system_prompt: str | None = _science(None)
    """System message of the conversation; none is sent where this is null."""
    chat_template: str | None = _science(None)
    """Path of a Jinja file, or the name of a shipped plain template; null: the tokenizer's own."""
    thinking: str = _science("unset")
    """``on`` or ``off`` is passed to the chat template as ``enable_thinking``; ``unset`` is not.
    With ``on`` the thinking block is split off the answer. ``prompt``: the system message tells
    the model to think between the tags, for models that think only when told."""
    thinking_open: str = _science("<think>")
    """Tag that begins a thinking block."""
    thinking_close: str = _science("</think>")
    """Tag that ends a thinking block."""
    split_thinking: str = _science("auto")
    """``auto``: split where thinking is on, or unset and the chat template mentions the opening
    tag; ``always``; ``never``."""
    custom_thinking_prompt: str | None = _science(None)
    """Instruction added to the system message instead of that of ``thinking=prompt``."""
    stop: list[str] = _science([])
    """Further stop strings; they apply to the answer, not to the thinking before it."""
    stop_token_ids: list[int] = _science([])
    """Further end tokens, beside those of generation_config and the tokenizer."""
    content: str = ""
    """Set by the run: the fingerprint of the files when the run was planned. An engine that finds
    others in their place does not answer."""
    root: str | None = None
    """With ``model=checkpoints``: the folder that holds the checkpoint folders."""
    runs: str | None = None
    """With ``model=checkpoints``: which folders of ``root`` are training runs, as a pattern
    (``*``, ``exp_*/seed*``); null: ``root`` itself is one."""
    pattern: str | None = None
    """With ``model=checkpoints``: how the checkpoint folders of a run are called, where it is not
    usual: ``it{step}``, ``weights/{step}/hf``; ``*`` stands for anything."""
    base: str | None = None
    """With ``model=checkpoints``: base model of adapters, instead of the one that they name."""
    steps: list[int] = field(default_factory=list)
    """Only these steps of ``root``."""
    every: int = 1
    """Only every n-th checkpoint of ``root``, of each run."""
    last: int | None = None
    """Only the last n checkpoints of ``root``, of each run."""

    @property
    def label(self) -> str:
        """The name shown for the model: the exact text typed, unless ``name`` is set."""
        return self.name or (f"{self.path}+{self.adapter}" if self.adapter else self.path)


@dataclass
class SamplingConfig:
    """How answers are sampled."""

    temperature: float | None = _science(None)
    """One temperature for all questions; null: the benchmark's own (MT-Bench: by category)."""
    top_p: float = _science(1.0)
    """Nucleus sampling; 1 is off, whatever the model's generation_config says."""
    top_k: int = _science(-1)
    """Top-k sampling; -1 is off."""
    repetition_penalty: float = _science(1.0)
    """1 is off."""
    max_tokens: int | None = _science(1024)
    """New tokens per turn; null: the benchmark's own number (MT-Bench: 1024, IFEval and IFBench:
    4096, with thinking 32768); 0, behind an endpoint, leaves them to the service."""
    seed: int = _science(0)
    """Run seed; the seed of a turn is made from it, the question, the turn and the sample."""
    samples: int = 1
    """Answers per question; each has its own id, so raising this only adds work."""

    @property
    def cap(self) -> int:
        """``max_tokens`` once the run has filled it in."""
        assert self.max_tokens is not None, "settings were not validated"
        return self.max_tokens


@dataclass
class EndpointConfig:
    """A service that speaks the OpenAI chat API: shared by ``judge`` and ``engine=openai``."""

    base_url: str | None = _science(None)
    """Root of the API, for example http://127.0.0.1:8000/v1; null: the openai client's own."""
    api_key_env: str | None = "OPENAI_API_KEY"
    """Environment variable that holds the key; null where the service wants none."""
    requests_per_minute: float | None = None
    """Rate limit of the service; null is no limit."""
    tokens_per_minute: float | None = None
    """Limit on prompt plus completion tokens."""
    concurrency: int = 128
    """Calls in flight at most."""
    timeout_s: float = 120.0
    """Seconds until one call is given up."""
    max_retries: int = 6
    """Further tries of one call after faults that may pass (5xx, connection, timeout, a reply that
    is none); a 429 does not count, it is bounded by ``max_retry_after_s``."""
    max_retry_after_s: float = 600.0
    """The longest wait that a service may ask for; a longer one fails the call. After so long a
    time of 429 in which no call got through at all, the service is given up."""
    retry_wait_s: float = 1.0
    """Seconds before the first further try after a fault; a random part is added."""
    retry_factor: float = 2.0
    """Each further wait is so many times the one before it."""
    retry_max_wait_s: float = 60.0
    """No wait between two tries is longer, unless the service asks for it."""
    adaptive: bool | None = None
    """Go at the pace that a service permits, learned from its headers and refusals: null, where no
    limit is stated; true, also halve a stated one on 429; false, never."""
    limit_scope: str = "run"
    """``run``, or ``cluster``: one limiter for all runs on the Ray cluster that this one joins;
    where it joins none, for all of this user's runs on this machine."""
    context_window: int | None = None
    """Tokens of prompt and reply that the service's model takes; null is unknown."""
    token_param: str | None = None
    """``max_tokens`` or ``max_completion_tokens``; null: learned from the service."""
    extra_body: dict[str, Any] = _science({})
    """Further fields of each request, above all others; null leaves a field out."""


@dataclass
class JudgeConfig(EndpointConfig):
    """The judge."""

    kind: str = "openai"
    """``openai`` (any compatible API), ``local`` (a vLLM server of the run's own) or ``none``."""
    name: str = ""
    """Label in tables and files; the model where empty."""
    model: str = _science("")
    """Name sent to the API; with ``judge=local`` a Hugging Face id or folder."""
    prompts: str = "fastchat"
    """``fastchat`` (the benchmark's own), ``rubric5``, or the path of a prompt file."""
    temperature: float | None = _science(0.0)
    """Sampling temperature; null sends none."""
    max_tokens: int = _science(2048)
    """Tokens of the reply at most; 0 leaves them to the service."""
    max_tokens_retry: int = 8192
    """The larger cap that a reply cut off at ``max_tokens`` is asked again with; 0: never."""
    parse_retries: int = 2
    """Further calls for a reply without a valid rating."""
    samples: int = 1
    """Repeats of each judgment; each is a row of its own."""
    truncate: str = _science("never")
    """``answer_tail`` cuts the end of long answers to fit the judge's window, and records it."""
    reasoning_effort: str | None = _science(None)
    """Sent to reasoning models where set."""
    constrain: bool | None = _science(None)
    """Force the reply into a short explanation and a rating (structured outputs of vLLM); null:
    only for the demo model, which would not keep the format by itself."""
    thinking_open: str = "<think>"
    """Tag that begins the thinking of a judge that thinks in its reply."""
    thinking_close: str = "</think>"
    """Tag that ends it."""
    price_prompt: float | None = None
    """Dollars per million prompt tokens; null: as genai-prices lists them for the model at this
    address, unknown where it does not."""
    price_completion: float | None = None
    """Dollars per million completion tokens."""
    price_cached: float | None = None
    """Dollars per million prompt tokens that the service had cached; null: as listed where the
    other prices are, else as others."""
    batch: bool = False
    """Send the calls through the service's batch API: cheaper, and replies within a day. They
    leave once the last answer is there; a run may end before the replies come, and the same
    command collects them later."""
    batch_price: float = 0.5
    """``judge.batch``: share of the price that a call in a batch costs."""
    batch_wait_s: float | None = 600.0
    """``judge.batch``: seconds that a run waits for batches once all calls are sent, before it ends
    as incomplete; 0: send, look once and end; null: until all have ended."""
    batch_cancel: bool = False
    """``judge.batch``: Ctrl-C cancels the batches; without it they run on, and are collected by the
    next run. What a cancelled batch has answered is paid, and collected too."""
    replicas: int = 1
    """``judge=local``: servers to start."""
    tensor_parallel: int = 1
    """``judge=local``: GPUs per server."""
    max_model_len: int | None = None
    """``judge=local``: context window of the server."""
    gpu_memory_utilization: float = 0.9
    """``judge=local``: share of each GPU."""
    schedule: str = "auto"
    """``judge=local``: ``together`` with the answers, ``after`` them, or ``auto``: together where
    the GPUs suffice (and always without GPUs)."""
    args: dict[str, Any] = field(default_factory=dict)
    """``judge=local``: further arguments of the vLLM server, by their flag names."""
    start_timeout_s: float = 600.0
    """``judge=local``: seconds until the server must be up."""
    content: str = ""
    """Set by the run: hash of the folder of a ``judge=local``, where it is on this machine."""

    @property
    def label(self) -> str:
        """The name shown for the judge."""
        return self.name or self.model or self.kind

    @property
    def server_science(self) -> dict[str, Any]:
        """What a local judge's server adds to its science settings; secrets change nothing."""
        settings = {"args": without_secrets(self.args), "content": self.content}
        return {name: value for name, value in settings.items() if value}

    @property
    def demo(self) -> bool:
        """Whether the judge is the demo model: its scores are not comparable with anything."""
        return self.kind == "local" and self.model == DEMO_MODEL


@dataclass
class EngineConfig(EndpointConfig):
    """What runs the model."""

    kind: str = _science("vllm")
    """``vllm`` (in Ray actors), ``openai`` (a running server) or ``fake`` (for tests)."""
    replicas: int | None = None
    """Engine actors; null: as many as the cluster's GPUs allow, and no more than shards."""
    tensor_parallel: int = 1
    """GPUs per engine, split by tensor."""
    pipeline_parallel: int = 1
    """GPUs per engine, split by layer."""
    dtype: str = _science("auto")
    """Weights' type; ``auto``: the model's own, and without a GPU float32 where the CPU of the
    engine's node has no fast bfloat16. Each answer's row has the type that was used."""
    quantization: str | None = _science(None)
    """vLLM's quantization method."""
    max_model_len: int | None = _science(None)
    """Context window in tokens; null: what the longest conversation may need with
    ``sampling.max_tokens``, at least 8192, at most the model's own."""
    window: int = 8192
    """Set by the run: what ``max_model_len=null`` comes to where the model has more."""
    gpu_memory_utilization: float = 0.9
    """Share of each GPU that the engine takes."""
    memory_limit_gb: float | None = None
    """Instead of a share: gigabytes per GPU, turned into a share of the card that is there."""
    max_num_seqs: int | None = None
    """Conversations running at once in one engine; null: 96, 256 where a model has more to answer,
    and 32 without a GPU, where more would only make each of them slower."""
    piece: int = 0
    """Set by the run: conversations that an engine is given with a model."""
    enforce_eager: bool | None = None
    """No CUDA graphs and no compilation; null: only without a GPU."""
    compile: bool = False
    """``torch.compile`` the model, vLLM's own default: half a minute or more for each engine start
    with another checkpoint, and answers that round otherwise once the code is found in the cache.
    Seconds for a checkpoint's 160 turns: 7B on one card as without, over two cards 12 instead of
    14, 1.5B on one card 11 instead of 12.5."""
    fork_server: bool = True
    """Fork the processes of engines from one that has imported vLLM, which saves each start some 20
    s; off, or with a vLLM or Python that has other names for what this replaces: spawn them."""
    trust_remote_code: bool = False
    """Run code that ships with the model. Off unless you trust its author."""
    args: dict[str, Any] = _science({})
    """Further vLLM engine arguments."""
    hot_swap: str = "auto"
    """Swap weights in place between checkpoints of one architecture: ``auto``, ``off``, or
    ``verify`` (also compare with a fresh engine)."""
    next_weights: str = "auto"
    """Where the next checkpoint's weights wait for their swap: ``device`` (memory of the card that
    the engine leaves free; one card per engine), ``host`` (pinned memory), ``files`` (page cache),
    or ``auto``: the first of these that there is room for."""
    start_timeout_s: float = 1200.0
    """Seconds until an engine must be up."""
    stall_s: float = 300.0
    """Seconds without any token until an engine counts as hung; one without a GPU whose processes
    compute meanwhile is slow, and hung after six times as long."""
    max_restarts: int = 3
    """Fresh engines after faults, per shard."""
    row_attempts: int = 2
    """Times one conversation may take its engine down before it is failed alone."""
    min_response_length: int = _science(0)
    """``engine=openai``: shorter answers, in characters, are asked again, then stored as empty."""
    cpu_kv_cache_gb: float = 2.0
    """Key-value cache of an engine without a GPU."""
    cpu_threads: int | None = None
    """Threads of an engine without a GPU; null: all cores over the engines there, at
    least two."""
    fake_seconds_per_token: float = 0.0
    """``engine=fake``: time per token of a turn."""
    fake_faults: dict[str, Any] = field(default_factory=dict)
    """``engine=fake``: scripted faults, see engines/fake.py."""


@dataclass
class BenchmarkConfig:
    """Which benchmark."""

    name: str = _science("mt_bench")
    """Registered name of the benchmark."""


@dataclass
class ClusterConfig:
    """Where it runs."""

    address: str | None = None
    """Ray address: null starts Ray here (or joins the cluster of RAY_ADDRESS); ``auto`` joins."""
    ray: str = "auto"
    """``auto``: Ray for engines in actors, none for an endpoint; ``always``."""
    num_cpus: int | None = None
    """CPUs of a Ray started here."""
    num_gpus: int | None = None
    """GPUs of a Ray started here; on a cluster that is joined, so many are asked of its autoscaler
    and waited for. Without it a cluster that has no GPU yet runs engines on CPUs."""
    wait_s: float = 30.0
    """Seconds to wait for nodes of a growing cluster before need and have are compared."""
    lost_wait_s: float = 120.0
    """Seconds to wait, once nodes are lost in mid-run, for others that have room for an engine. At
    most 40 of them for the cluster's head: Ray ends a run that has none for a minute."""


@dataclass
class ReportConfig:
    """How results are shown."""

    format: str = "table"
    """``table``, ``json``, ``markdown``, ``csv`` or ``latex``."""
    resamples: int = 2000
    """Bootstrap resamples of the intervals."""
    seed: int = 0
    """Seed of the bootstrap."""


@dataclass
class WatchConfig:
    """Beside a training run: checkpoints are taken as they land."""

    enabled: bool = False
    """``watch=true``: go on looking for new checkpoints below ``model.root``, until a file ``DONE``
    lies in it, ``until`` says so, or Ctrl-C."""
    until: str = ""
    """When to end: a step (``5000``: once that checkpoint is done), a time without news (``90min``,
    ``2h``), or both with a space between; empty: only with ``DONE``."""
    look_s: float = 15.0
    """Seconds between two looks at the folder."""
    settle_s: float = 30.0
    """Seconds for which nothing in a checkpoint's folder may change before it is taken."""
    release: bool = False
    """Give the GPUs back between checkpoints: engines are stopped after each round, and start again
    for the next one. For a GPU that the trainer needs too, with ``engine.memory_limit_gb``."""
    alert: str = ""
    """A command, or the https address of a webhook, that gets a JSON object (on its standard input,
    or as the body) when a checkpoint is worse than the best before it by more than noise."""


@dataclass
class TrackerConfig:
    """Where scores are sent to, beside the workspace."""

    kind: str = "none"
    """``wandb``, ``mlflow``, ``tensorboard``, ``trackio`` or ``none``."""
    run_id: str | None = None
    """Write into this run, the training's own: its id, with trackio its name, with TensorBoard its
    folder below ``uri``. null: a run of its own for each training run."""
    project: str | None = None
    """Project (wandb: also ``entity/project``), in MLflow the experiment; null: what WANDB_PROJECT
    or MLFLOW_EXPERIMENT_NAME says, else mtbench_ray."""
    uri: str | None = None
    """MLflow: server or folder; TensorBoard: folder of runs, ``tensorboard`` in the workspace where
    it is null; trackio: folder or server."""
    offline: bool = False
    """wandb: write files into the workspace, which ``wandb sync`` sends later."""
    prefix: str = "mtbench"
    """Begins the names of all figures."""
    step: int | None = None
    """Training step of a model whose name has none; null: 0."""
    tables: bool = True
    """Send the verdicts too, each with question, answer and judgment."""
    pictures: bool = True
    """Send the curve of a training run as a picture."""
    timeout_s: float = 300.0
    """Seconds that sending may take at the end of a run; what was not sent by then is sent by the
    next one."""


@dataclass
class RunConfig:
    """One run: a model under a judge."""

    model: ModelConfig = field(default_factory=ModelConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    benchmark: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    sampling: SamplingConfig = field(default_factory=lambda: SamplingConfig(max_tokens=None))
    report: ReportConfig = field(default_factory=ReportConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    models: list[str] = field(default_factory=list)
    """Several models at once, for experiment files: each becomes a job like ``model=<it>``."""
    benchmarks: list[str] = field(default_factory=list)
    """Several benchmarks at once, what ``benchmark=[a,b]`` sets: each becomes a job, and all jobs
    of a model are one visit of an engine. ``benchmark.<name>.<setting>`` is a setting of one, typed
    or in a file; it beats what is set for all."""
    workspace: str = "results"
    """Folder of everything that is kept; re-running the same command does only what is pending."""
    mode: str | None = None
    """How answers are judged, of MT-Bench: ``single``, ``pairwise-baseline`` (needs ``baseline``)
    or ``pairwise-all``; null: the benchmark's first way."""
    baseline: str | None = None
    """Model that the others are compared with: of this run, the workspace or an import; null: the
    one whose answers ship with the benchmark, where there is one."""
    protocol: str = "default"
    """``default``, or ``official``: as the benchmark's own program does it, also where that
    misleads; ``list benchmarks`` names the version."""
    parity: str = "safe"
    """``safe``, or ``fastchat`` for FastChat's own parsing and aggregation."""
    stage: str = "all"
    """``answers`` (no judging), ``judge`` (only judge what the workspace holds) or ``all``."""
    question_path: str | None = None
    """Your own question file instead of the official one."""
    reference_path: str | None = None
    """Your own reference answers."""
    judge_prompt_path: str | None = None
    """Your own judge prompts in FastChat's format."""
    categories: list[str] = field(default_factory=list)
    """Only these categories."""
    limit: int | None = None
    """Only so many questions; of a dialogue whose turns are questions of their own: so many
    dialogues."""
    limit_by: str = "order"
    """``order``: the first ones; ``category``: evenly over the categories."""
    select: str | None = None
    """Judge question by question, in random order, and stop once it is decided: ``best`` (which
    model is), or ``gate`` (of two models, whether the first is worse than the second)."""
    gate: float = 0.0
    """``select=gate``: worse by so many points or more. ``select=best``: it is decided, too, once
    none could be more than so many points better than the best one."""
    select_seed: int = 0
    """``select``: seed of the order of the questions; to be chosen before verdicts are seen."""
    budget_usd: float | None = None
    """Stop judging before this many dollars are spent in this run."""
    fresh: bool = False
    """Start over: earlier rows are kept on disk but not counted."""
    quiet: bool = False
    """No progress lines."""
    debug: bool = False
    """Tell every request, retry and line of an engine; keys are left out."""
    show: int = 0
    """``plan``: print this many rendered answer and judge prompts."""
