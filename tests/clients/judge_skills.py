"""Says what the format's reference validator makes of each case of skill_md.toml: a line of JSON for each."""

import json
import pathlib
import re
import sys
import tempfile
import tomllib

from skills_ref import validate


def expanded(text):
    return re.sub(r"\{(.)\*(\d+)\}", lambda found: found[1] * int(found[2]), text)


cases = tomllib.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))["case"]
for case in cases:
    with tempfile.TemporaryDirectory() as temp:
        skill = pathlib.Path(temp) / expanded(case.get("dir", "pdf"))
        skill.mkdir()
        file = skill / case.get("file", "SKILL.md")
        file.write_bytes(expanded(case["text"]).encode())
        try:
            problems = validate(skill)
        except Exception as error:  # It is a program of others, and ends so for its user, too.
            problems = [repr(error)]
    print(json.dumps({"what": case["what"], "verdict": "invalid" if problems else "valid", "problems": problems}))
