"""Import and export of FastChat's llm_judge files.

The only place that knows FastChat's marks of failure (score -1, winner ``error``, the text
``$ERROR$``): inside, a failure is a row without a value and with a reason.
"""

from mtbench_ray.fastchat.counting import dedupe, imported_outcomes
from mtbench_ray.fastchat.exports import export_fastchat
from mtbench_ray.fastchat.imports import ImportReport, import_fastchat

__all__ = ["ImportReport", "dedupe", "export_fastchat", "import_fastchat", "imported_outcomes"]
