"""The pages of claims are what the markers of the tests say."""

import claims


def test_the_pages_are_current():
  pages = claims.collect()
  assert pages == {file.stem: file.read_text() for file in claims.FOLDER.glob("*.md")}, (
    "run python tests/claims.py"
  )
  assert pages["dropmax"].count("\n| ") >= 15
