"""Import and export of FastChat's llm_judge files.

The only place that knows FastChat's marks of failure (score -1, winner ``error``, the text
``$ERROR$``): inside, a failure is a row without a value and with a reason.

In: a tree of FastChat's files, or a workspace.

Out: rows and evaluations in a workspace, or files that FastChat's own scripts read.

>>> from mtbench_ray.fastchat.answers import official_category
>>> official_category(81)
'writing'
"""

from mtbench_ray.fastchat.counting import dedupe, imported_outcomes
from mtbench_ray.fastchat.exports import export_fastchat
from mtbench_ray.fastchat.imports import ImportReport, import_fastchat

__all__ = ["ImportReport", "dedupe", "export_fastchat", "import_fastchat", "imported_outcomes"]
