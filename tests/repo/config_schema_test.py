#!/usr/bin/env python3
"""`hrm_train config --schema` against the files in configs/ and other documents: config_schema_test.py PROGRAM

Only Python's standard library is used: below is a validator of those keywords that the schema contains.
"""
import json
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build/bin/hrm_train"
ANNOTATIONS = {"$schema", "title", "description", "default", "deprecated", "deprecationMessage"}
TYPES = {
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "integer": lambda value: TYPES["number"](value) and value == int(value),
}
LIMITS = {
    "minimum": lambda value, limit: value >= limit,
    "maximum": lambda value, limit: value <= limit,
    "exclusiveMinimum": lambda value, limit: value > limit,
    "exclusiveMaximum": lambda value, limit: value < limit,
}


def resolve(root, pointer):
    assert pointer.startswith("#/"), pointer
    for name in pointer[2:].split("/"):
        root = root[name]
    return root


def faults(root, schema, value, place=""):
    """What is wrong with a value, by JSON Schema draft 2020-12."""
    if schema is False:
        return [f"{place}: not allowed"]
    found = []
    for keyword, rule in schema.items():
        if keyword == "$ref":
            found += faults(root, resolve(root, rule), value, place)
        elif keyword == "type":
            found += [] if TYPES[rule](value) else [f"{place}: is no {rule}"]
        elif keyword == "enum":
            found += [] if value in rule else [f"{place}: is none of {rule}"]
        elif keyword == "const":
            found += [] if value == rule else [f"{place}: is not {rule}"]
        elif keyword in LIMITS:
            found += [f"{place}: {keyword} {rule}"] if TYPES["number"](value) and not LIMITS[keyword](value, rule) else []
        elif keyword == "properties":
            for name in (value.keys() & rule.keys()) if isinstance(value, dict) else ():
                found += faults(root, rule[name], value[name], f"{place}.{name}")
        elif keyword == "patternProperties":
            for name in value if isinstance(value, dict) else ():
                for pattern, inner in rule.items():
                    found += faults(root, inner, value[name], f"{place}.{name}") if re.search(pattern, name) else []
        elif keyword == "additionalProperties":
            patterns = schema.get("patternProperties", {})
            for name in value if isinstance(value, dict) else ():
                if name not in schema.get("properties", {}) and not any(re.search(p, name) for p in patterns):
                    found += faults(root, rule, value[name], f"{place}.{name}")
        elif keyword not in ANNOTATIONS:
            raise AssertionError(f"the validator does not know the keyword {keyword}")
    return found


def without_comments(text):
    return re.sub(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', lambda match: match[1] or "", text, flags=re.DOTALL)


def run(*words):
    return subprocess.run([PROGRAM, "config", *words], capture_output=True, text=True, timeout=60, check=True).stdout


class Schema(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.schema = json.loads(run("--schema"))

    def test_recipes(self):
        files = sorted((ROOT / "configs").rglob("*.json"))
        self.assertGreaterEqual(len(files), 6)
        for file in files:
            recipe = json.loads(without_comments(file.read_text(encoding="utf-8")))
            self.assertEqual(faults(self.schema, self.schema, recipe), [], file)
        whole = json.loads(run("--json", "--config", files[0]))
        self.assertEqual(faults(self.schema, self.schema, whole), [])

    def test_cases(self):
        # tests/config/json_schema_test.cpp shows that the loader says the same of them.
        cases = json.loads((ROOT / "tests/config/schema_cases.json").read_text(encoding="utf-8"))
        for document in cases["accepted"]:
            self.assertEqual(faults(self.schema, self.schema, document), [], document)
        for document in cases["refused"]:
            self.assertNotEqual(faults(self.schema, self.schema, document), [], document)

    def test_wrong_values_of_every_key(self):
        wrong = {"boolean": ["true", 1], "integer": ["1", 1.5, True], "number": ["1", True], "string": [1, None]}

        def check(schema, place):
            count = 0
            for name, inner in schema["properties"].items():
                if "properties" in inner:
                    self.assertNotEqual(faults(self.schema, inner, 1), [], f"{place}.{name}")
                    count += check(inner, f"{place}.{name}")
                    continue
                values = wrong[inner["type"]] if "type" in inner else [None, "another"]
                values = values + (["no choice"] if "enum" in inner else [])
                values = values + [inner[key] + way for key, way in (("minimum", -1), ("maximum", 1)) if key in inner]
                values = values + [inner[key] for key in ("exclusiveMinimum", "exclusiveMaximum") if key in inner]
                for value in values:
                    self.assertNotEqual(faults(self.schema, inner, value), [], f"{place}.{name} = {value}")
                if "default" in inner:
                    self.assertEqual(faults(self.schema, inner, inner["default"]), [], f"{place}.{name}")
                count += 1
            return count

        self.assertGreater(check(self.schema, ""), 200)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
