import json

import pytest

from mtbench_ray.system.redact import redact_json, redactor


def test_a_secret_is_found_plain_and_inside_json() -> None:
    secret = 'sk-pl"anted\\key-\u00e9'
    redact = redactor([f"  {secret}\n"])
    assert redact(f"key {secret}!") == "key ***!"
    assert json.loads(redact(json.dumps({"error": f"bad {secret}"}))) == {"error": "bad ***"}


def test_the_longer_of_two_secrets_is_replaced_whole() -> None:
    assert redactor(["sk-abcdefgh", "sk-abcdefgh-long"])("sk-abcdefgh-long") == "***"


WORDS = [
    "anything", "question", "EMPTY", "no-key-needed", "placeholder", "Placeholder", "not-needed",
    "dummy-key", "CHANGE_ME", "lm-studio", "strength", "beautiful", "explain", "fake key", "none",
]  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_what_may_be_a_word_is_no_secret(word: str) -> None:
    assert redactor([word])(f"{word}: say {word}") == f"{word}: say {word}"


@pytest.mark.parametrize(
    "key",
    ["qzkfmwvxbt", "hGtRwPqLsK", "AbcdEfghIj", "sk-ABcdEFgh", "xkcdqwrt", "TOKENxyzw",
     "abcdefghijklmnop", "pneumonoultramicro"],
)  # fmt: skip
def test_a_key_of_letters_only_is_hidden(key: str) -> None:
    assert redactor([key])(f"bad key {key}.") == "bad key ***."


@pytest.mark.parametrize(
    "secret", ["token-abc123", "12345678", "finish_reason_of_a_key", 'a1"b\\c"d2', "ends-in-9999\\"]
)
def test_json_stays_json_of_the_same_form(secret: str) -> None:
    row = {
        secret: [f"say {secret}!", {"deep": f"{secret}: \\"}, 1712345678.25, secret],
        "number": 123456789,
        "other": 'a "quoted: text"',
    }
    for text in (json.dumps(row), json.dumps(row, indent=1)):
        clean = json.loads(redact_json(redactor([secret]), text))
        assert clean == {
            secret: ["say ***!", {"deep": "***: \\"}, 1712345678.25, "***"],
            "number": 123456789,
            "other": 'a "quoted: text"',
        }


def test_a_text_that_is_no_json_is_redacted_whole() -> None:
    assert redact_json(redactor(["token-abc123"]), '"x" token-abc123') == '"x" ***'


def test_placeholders_and_empty_values_change_nothing() -> None:
    assert redactor(["EMPTY", "", "   ", "none"])("EMPTY none   ") == "EMPTY none   "
