"""The content of a summary.json."""

FULL = {
    "mean": 6.5,
    "ci_low": 6.1,
    "ci_high": 6.9,
    "ci_method": "own",
    "planned": 160,
    "scored": 160,
    "failed": {},
}
NONE = {
    "mean": None,
    "ci_low": None,
    "ci_high": None,
    "ci_method": "none: 4 questions, 5 are needed",
    "planned": 20,
    "scored": 0,
    "failed": {"no_rating": 20},
}


def summary(*models, average=FULL, categories=None):
    return {
        "benchmark": "mt_bench", "mode": "single", "parity": "safe", "notes": [],
        "results": [
            {
                "model": model, "judge": "j", "settings": {}, "demo": False,
                "error": None, "truncated": 0, "output_tokens_per_s": None,
                "first_turn": FULL, "second_turn": FULL,
                "average": average, "categories": categories or {},
                "answers": {"answered": 160, "planned": 160, "failed": {}},
            }
            for model in models
        ],
    }  # fmt: skip
