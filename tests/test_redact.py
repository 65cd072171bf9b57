import json

from mtbench_ray.redact import redactor


def test_a_secret_is_found_plain_and_inside_json() -> None:
    secret = 'sk-pl"anted\\key-\u00e9'
    redact = redactor([f"  {secret}\n"])
    assert redact(f"key {secret}!") == "key ***!"
    assert json.loads(redact(json.dumps({"error": f"bad {secret}"}))) == {"error": "bad ***"}


def test_the_longer_of_two_secrets_is_replaced_whole() -> None:
    assert redactor(["sk-abcdefgh", "sk-abcdefgh-long"])("sk-abcdefgh-long") == "***"


def test_placeholders_and_empty_values_change_nothing() -> None:
    assert redactor(["EMPTY", "", "   ", "none"])("EMPTY none   ") == "EMPTY none   "
