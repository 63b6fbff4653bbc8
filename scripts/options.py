"""Writes the tables of docs/reference/configuration.md from the definition of the options.

`python scripts/options.py` replaces what is between the markers; a test compares it with the definition.
"""

from pathlib import Path

from everstream.pipeline.options import GROUPS, OPTIONS, SETTINGS, RunOptions, Setting

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "configuration.md"
BEGIN, END = "<!-- begin: made by scripts/options.py -->\n", "<!-- end -->\n"
HEAD = (
    "| option (keyword, key) | default | unit or values | flag | environment variable | meaning |\n"
)
RULE = "| --- | --- | --- | --- | --- | --- |\n"


def tables() -> str:
    """All options: those in no group, then each group."""
    text = ""
    for group in ("", *GROUPS):
        if group:
            kind = GROUPS[group]
            first = (kind.__doc__ or "").partition("\n")[0]
            text += f"\n### {group.capitalize()}\n\n{first} In Python: `es.{kind.__name__}`.\n"
        text += "\n" + HEAD + RULE
        text += "".join(_row(one) for one in SETTINGS.values() if one.group == group)
        text += "".join(
            f"| `{name}` | none | Python only | - | - | {_cell(_help(place.field, group))} |\n"
            for name, place in OPTIONS.items()
            if place.group == group and name not in SETTINGS
        )
    return text + "\n"


def _help(name: str, group: str) -> str:
    kind = GROUPS[group] if group else RunOptions
    return str(kind.__dataclass_fields__[name].metadata["definition"].help)


def _row(setting: Setting) -> str:
    text = setting.text
    values = ", ".join(f"`{word}`" for word in text.choices) or text.unit or _shape(setting)
    flag = f"`{setting.flag}`" if setting.flag else "-"
    variable = f"`{setting.variable}`" if setting.variable else "-"
    name = f"`{setting.name}`"
    if setting.option and setting.name != setting.option:
        name += f" (of `{setting.option}`)"
    if setting.for_one_run:
        name += " *"
    cells = (name, setting.default, values, flag, variable, setting.help)
    return "| " + " | ".join(map(_cell, cells)) + " |\n"


def _shape(setting: Setting) -> str:
    if setting.text.switch:
        return "yes or no"
    return f"`{setting.text.metavar}`" + (", several" if setting.text.many else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page(text: str) -> str:
    """This page with the tables as they are now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + tables() + END + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
