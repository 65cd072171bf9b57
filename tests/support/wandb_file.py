"""Reads a ``.wandb`` file: records of a LevelDB log, each a protobuf of wandb's own."""

import json

_BLOCK, _FULL, _FIRST, _LAST = 32768, 1, 2, 4


def records(path):
    """The records of a file."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = path.read_bytes()
    assert data[:4] == b":W&B"
    at, part = 7, b""
    while at + 7 <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < 7:  # the rest of a block is no record
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        body = data[at + 7 : at + 7 + size]
        at += 7 + size
        part = body if kind in (_FULL, _FIRST) else part + body
        if kind in (_FULL, _LAST):
            record = Record()
            record.ParseFromString(part)
            yield record


def history(path):
    """What was logged, a dictionary for each line."""
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            yield {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }


def config(path):
    """The run's settings."""
    found = {}
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind in ("run", "config"):
            of = record.run.config if kind == "run" else record.config
            found |= {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in of.update
            }
    return found
