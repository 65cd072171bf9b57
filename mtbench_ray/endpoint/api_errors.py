"""What a service's refusals mean: which may pass, which never will, and how long to wait.

Pure functions over status, headers and body, so that every form can be tested without a server.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from mtbench_ray.endpoint.sizes import SizeKind, size_kind
from mtbench_ray.schema import Status

_SHOWN = 500  # characters of a service's own words that go into a row or a message
_SEARCHED = 4000

_UNITS = {"ms": 0.001, "m": 60.0, "h": 3600.0, "s": 1.0}
_SPAN = r"\d+(?:\.\d+)?\s*(?:milliseconds?|ms|minutes?|mins?|hours?|hrs?|seconds?|secs?|[hms])"
_WAIT_IN_TEXT = re.compile(
    rf"(?:try again|retry|retry_?delay)\W{{0,4}}(?:in|after)?\W{{0,4}}((?:{_SPAN}\s*)+)", re.I
)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.I)

_TOO_LARGE = re.compile(
    r"(?:request|input|prompt|message)s? (?:is |are |was )?too (?:large|long)|must be reduced"
    r"|reduce (?:the|your) (?:message|prompt|input|request)|larger than the .{0,20}limit",
    re.I,
)
_REQUESTED = re.compile(r"\blimit\D{0,20}([\d,]+).{0,40}?\brequested\D{0,20}([\d,]+)", re.I)
_FILTERED = re.compile(
    r"content[ _](?:filter|policy|management)|moderation|flagged|safety system|usage polic", re.I
)
_MONEY_CODE = re.compile(
    r"insufficient_?(?:quota|balance|credit|fund)|exceeded_current_quota|billing_?(?:hard|not)"
    r"|arrear|overdue|budget_?exceeded|out_of_(?:credit|quota)|\b1113\b",
    re.I,
)
"""In the fields ``code`` and ``type``: an account without money, whatever the message says."""
_MONEY = re.compile(
    r"balance|credits?\b|quota|\bfunds\b|billing|spend|arrear|overdue|unpaid|budget|recharge"
    r"|top.?up|good standing|usage limits?|余额|欠费|充值|额度|资源包",
    re.I,
)
_SPENT = re.compile(
    r"insufficient|not enough|exceed|exhaust|\bout of\b|used (?:all|up)|reached|too low|negative"
    r"|depleted|ran out|\bno (?:more |remaining )?(?:credit|quota|balance|funds)|\badd\b|purchase"
    r"|recharge|top.?up|overdue|unpaid|suspended|standing|不足|欠费|充值|用完|耗尽|超",
    re.I,
)
_SHORT_PERIOD = re.compile(
    r"per[ _-]?(?:second|minute)|/ ?(?:s|sec|min)\b|\b[rtq]p[ms]\b|too many requests|concurren"
    r"|try again|retry|稍后",
    re.I,
)
_LONG_PERIOD = re.compile(r"per[ _-]?(?:day|week|month)|daily|weekly|monthly|每[天日周月]", re.I)
_BAD_KEY = re.compile(
    r"(?:api[ _]?key\b.{0,30}\b(?:not valid|invalid)|(?:invalid|incorrect) api)", re.I
)
_NO_MODEL = re.compile(r"model_not_found|model\b.{0,120}\b(?:does not exist|not found)", re.I)


class Fault(Exception):
    """One call that gave no reply.

    Attributes:
        reason: Short and countable: ``timeout``, ``http_503``, ``rate_limited`` ...
        detail: The service's own words, at most 500 characters.
        retry: Whether the same call may succeed later.
        wait: Seconds that the service asked for, None where it did not say.
        limited: The service refused because of its rate (429).
        stop: Why no further call can succeed, empty where others may.
        status: The row's status where this is final.
        code: HTTP status, 0 where there was none.
        billed: The service may have written a reply that did not arrive.
        param: The request's field that the service itself names as the reason.
        size: What is too large, see :func:`~mtbench_ray.endpoint.sizes.size_kind`.
        limit: Requests a minute that the service says it permits, None where it does not say.
        money: A refusal because of the rate speaks of quota or credit: perhaps none is left.
    """

    def __init__(
        self,
        reason: str,
        detail: str = "",
        *,
        retry: bool = False,
        wait: float | None = None,
        limited: bool = False,
        stop: str = "",
        status: Status = "error",
        code: int = 0,
        billed: bool = False,
        param: str = "",
        size: SizeKind = "",
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = " ".join(detail.split())[:_SHOWN]
        self.retry = retry
        self.wait = wait
        self.limited = limited
        self.stop = stop
        self.status = status
        self.code = code
        self.billed = billed
        self.param = param
        self.size = size
        self.limit: float | None = None
        self.money = False

    @property
    def text(self) -> str:
        """Reason and detail as one line."""
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


def http_fault(code: int, headers: Mapping[str, str], body: str, now: float) -> Fault:
    """What a reply other than 2xx means.

    Args:
        code: HTTP status.
        headers: Reply headers with lower-case names (or a mapping that ignores case).
        body: Reply text.
        now: Unix seconds, for waits given as a date.
    """
    said = read_error(body)
    text = said.text
    probe = text[:_SEARCHED]
    wait = requested_wait(headers, body, now)
    size: SizeKind = "prompt" if code == 413 else ""
    if code in (400, 422):
        size = size_kind(said.message[:_SEARCHED])
    # Waiting for what can never pass would hold up all calls, and change nothing for this one.
    if size in ("prompt", "window") or (code == 429 and _can_never_pass(probe)):
        return Fault("context_overflow", text, status="context_overflow", code=code, size=size)
    if code in (400, 403, 422, 451) and _FILTERED.search(probe):
        return Fault("content_filter", text, status="refused", code=code)
    if code == 402 or (code in (400, 403, 429) and _no_money(said, waits=wait is not None)):
        return Fault("no_quota", text, stop="the account has no quota left", code=code)
    if code == 401 or (code == 400 and _BAD_KEY.search(probe)):
        return Fault("bad_key", text, stop="the key is not accepted", code=code)
    if code == 403:
        # A service answers in JSON; a page comes from something in between.
        page = text.lstrip().startswith("<")
        stop = "a firewall gives no access to this" if page else "the key has no access to this"
        return Fault("forbidden", text, stop=stop, code=code)
    if code == 404 or (code == 400 and _NO_MODEL.search(probe)):
        return Fault("not_found", text, stop="there is no such model or address", code=code)
    if code == 429:
        fault = Fault("rate_limited", text, retry=True, wait=wait, limited=True, code=code)
        fault.money = _MONEY.search(probe) is not None
        return fault
    retry = code in (408, 409) or code >= 500
    return Fault(
        f"http_{code}", text, retry=retry, wait=wait, code=code, param=said.param, size=size
    )


def _no_money(said: ErrorBody, waits: bool) -> bool:
    """Whether an account is empty, which no wait within a run mends.

    Args:
        waits: The service says when to come again: then it is a rate, whatever it calls it.
    """
    if _MONEY_CODE.search(said.code):
        return True
    text = said.text[:_SEARCHED]
    if waits or not _SPENT.search(text):
        return False
    if _LONG_PERIOD.search(text):
        return True
    return bool(_MONEY.search(text)) and not _SHORT_PERIOD.search(text)


def _can_never_pass(text: str) -> bool:
    """Whether one request alone is above a limit on tokens a minute."""
    asked = _REQUESTED.search(text)
    if asked is None:
        return _TOO_LARGE.search(text) is not None
    limit, requested = (int(number.replace(",", "") or 0) for number in asked.groups())
    return requested > limit


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """An error as a service wrote it.

    Attributes:
        text: Message, code and parameter; the plain text where it is not JSON.
        message: What a person reads.
        code: ``code`` and ``type``.
        param: The field of the request that the service names as the reason, or empty.
    """

    text: str
    message: str
    code: str = ""
    param: str = ""


def read_error(body: str) -> ErrorBody:
    """Read an error body in any of the forms in use."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return ErrorBody(body, body)
    if isinstance(data, list) and data:  # Gemini's form
        data = data[0]
    outer = data if isinstance(data, dict) else {}
    error = outer.get("error", data)
    if not isinstance(error, dict):
        # xAI's form: the message as ``error``, the code beside it.
        code = str(outer.get("code") or "")
        return ErrorBody(f"{error} {code}".strip(), str(error), code)
    parts = [error.get(name) for name in ("message", "msg", "detail", "code", "type", "param")]
    code = " ".join(str(error[name]) for name in ("code", "type") if error.get(name))
    text = " ".join(str(part) for part in parts if part) or body
    message = " ".join(str(part) for part in parts[:3] if part) or body
    return ErrorBody(text, message, code, _param(error))


def _param(error: Mapping[str, Any]) -> str:
    """The field that is named: ``param`` (OpenAI), or the end of a ``loc`` (FastAPI)."""
    param, detail = error.get("param"), error.get("detail")
    if isinstance(param, str):
        return param.strip("$.")
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):
        place = detail[0].get("loc")
        if isinstance(place, list) and place and isinstance(place[-1], str):
            return place[-1]
    return ""


def requested_wait(headers: Mapping[str, str], body: str, now: float) -> float | None:
    """Seconds that a service asks to wait, in any of the forms in use.

    ``retry-after-ms``, ``Retry-After`` as seconds or as an HTTP date, or "try again in 1.5s" in
    the text. None where nothing readable and in the future is there.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    candidates = [
        None if milliseconds is None else milliseconds / 1000,
        _number(headers.get("retry-after")),
        _until_date(headers.get("retry-after"), now),
        _wait_in_text(body[:_SEARCHED]),
    ]
    return next((c for c in candidates if c is not None and math.isfinite(c) and c > 0), None)


def _number(value: str | None) -> float | None:
    try:
        return float(value) if value is not None else None
    except ValueError:
        return None


def _until_date(value: str | None, now: float) -> float | None:
    try:
        return parsedate_to_datetime(value).timestamp() - now if value else None
    except (ValueError, TypeError, IndexError, OverflowError, OSError):
        return None


def _wait_in_text(text: str) -> float | None:
    found = _WAIT_IN_TEXT.search(text)
    if found is None:
        return None
    total = 0.0
    for number, unit in _PART.findall(found.group(1)):
        name = unit.lower()
        short = "ms" if name.startswith(("ms", "milli")) else name[:1]
        total += float(number) * _UNITS[short]
    return total


def malformed(reason: str, body: str = "") -> Fault:
    """A 200 whose body is no reply; another try may bring one, and this one may be billed."""
    if body.lstrip().lower().startswith(("<!doctype", "<html")):
        reason = "a web page instead of an API's reply, is base_url right?"
    return Fault("bad_reply", f"{reason} {body[:100]}".strip(), retry=True, billed=True)


def error_in_body(data: Mapping[str, Any], now: float) -> Fault:
    """Some gateways send 200 with an error object in place of choices."""
    error = data.get("error")
    code = str(error.get("code")) if isinstance(error, dict) else ""
    number = int(code) if re.fullmatch("[45][0-9][0-9]", code) else 502
    return http_fault(number, {}, json.dumps(data), now)
