"""The tables of claims are what the markers of the tests say."""

import claims


def test_the_pages_are_current():
  pages = claims.collect()
  assert sorted(pages) == sorted(file.parent.name for file in claims.ROOT.glob("papers/*/README.md"))
  assert pages == {name: claims.page(name).read_text() for name in pages}, "run python tests/claims.py"
