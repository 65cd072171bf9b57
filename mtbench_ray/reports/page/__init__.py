"""One file to browse a workspace: scores, questions, answers, judge prompts and judgments.

In: an open workspace (``collect``), whatever benchmarks and graders it holds.

Out: one HTML file that needs no network and no server (``page``), in which every text of a model
is harmless (``render``). ``page.html``, ``page.css`` and ``page.js`` are what it is made of.

>>> from mtbench_ray.reports.page.page import island
>>> island({"answer": "</script><b>"})
'{"answer":"\\\\u003c/script\\\\u003e\\\\u003cb\\\\u003e"}'
"""
