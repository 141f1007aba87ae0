"""Personal data out of texts: rules for what has a form, and a model for names that have none (3.1, 4.1).

Each find becomes ``[kind]``. The report counts; it quotes nothing. A row that the model did not check is left out.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from care_data.config import Config
from care_data.files import Rows, read_rows, write_rows
from care_data.judging import LEDGER
from care_data.prompts import read_object, render
from care_data.wire import Caller, calling

KEPT = {"id", "_id", "query_id", "document_id", "source", "license", "licence", "origin", "score", "judge_families"}
"""Keys whose values are no text."""
_ROWS = 500
_LONGEST = 40  # characters of the longest name that a model may find
_SURNAMES = (
    "王李张刘陈杨赵黄周吴徐孙胡朱郭何罗郑梁宋唐许邓冯韩曹曾彭萧蔡潘田董袁余叶蒋杜苏魏吕丁沈姚卢姜崔谭廖范汪陆贾夏"
)
_HAN = "[\u4e00-\u9fff]"
_CARDS = "病历|住院|门诊|就诊|就诊卡|医保|医保卡|社保|社保卡|身份证|护照|病案|档案|银行卡|工号"


def _luhn(text: str) -> bool:
    digits = [int(each) for each in reversed(text) if each.isdigit()]
    return (
        13 <= len(digits) <= 19 and not sum(sum(divmod(2 * d, 10)) if i % 2 else d for i, d in enumerate(digits)) % 10
    )


_DAY = r"\d{4}[-年./]\d{1,2}(?:[-月./]\d{1,2}日?)?|\d{1,2}/\d{1,2}/\d{4}"
_PLACE = "省|自治区|市|区|县|镇|乡|村|街道|大道|路|街|巷|弄|小区|花园|新村"
_HOUSE = r"\d+(?:号楼|号院|号|弄|栋|幢|单元|室)(?:\d+(?:号楼|单元|室|号|层|楼|栋|幢))*"
_PROVINCES = "京津沪渝冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青藏川宁琼"
_WESTERN = r"\b(?:Mr|Mrs|Ms|Dr|Prof)\.? |(?i:\b(?:my name is|patient name:?|patient:) )"
_RULES: tuple[tuple[str, str], ...] = (
    ("email", r"(?a:[\w.+-]+@[\w-]+(?:\.[\w-]+)+)"),
    ("link", r"(?:https?://|www\.)[^\s，。；、！？）)\]】》\"']+"),
    ("id", r"(?<!\d)[1-9]\d{5}(?:19|20)\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])\d{3}[\dXx](?![\dA-Za-z])"),
    ("id", r"(?<![\d-])\d{3}-\d{2}-\d{4}(?![\d-])"),
    ("card", r"(?<![\d-])\d(?:[ -]?\d){12,18}(?![\d-])"),
    ("number", rf"(?:{_CARDS})(?:号码?|编号)(?:是|为)?[:：#\s]*([A-Za-z0-9][A-Za-z0-9-]{{3,}})"),
    ("number", r"(?i)\b(?:mrn|medical record|patient id|passport)(?: (?:no\.?|number))?[:# ]+([a-z]*\d[a-z0-9-]{3,})"),
    ("phone", r"(?<![\d.])(?:\+?86[- ]?)?1[3-9]\d[- ]?\d{4}[- ]?\d{4}(?!\d)"),
    ("phone", r"(?<![\d.])(?:0\d{2,3}[- ]\d{7,8}|\(0\d{2,3}\)\s?\d{7,8}|400[- ]?\d{3}[- ]?\d{4})(?!\d)"),
    ("phone", r"(?<!\w)\+\d{1,3}(?:[- ]?\(?\d{1,4}\)?){2,5}(?!\d)|(?<![\d-])\(?\d{3}\)?[- ]\d{3}-\d{4}(?![\d-])"),
    ("account", r"(?i)(?:微信|薇信|wechat|vx|qq)(?:号|群)?(?:是|为)?[:：\s]*([a-z][-\w]{5,19}|\d{5,11})"),
    ("plate", rf"[{_PROVINCES}][A-Z]·?[A-Z0-9]{{5,6}}(?![A-Za-z0-9])"),
    ("birth", rf"(?i)(?:出生(?:日期|年月|于)?|生日|born(?: on)?|date of birth|dob)(?:是|为)?[:： ]*({_DAY})"),
    ("address", rf"(?:{_HAN}{{2,7}}?(?:{_PLACE})){{2,}}{_HAN}{{0,6}}?{_HOUSE}"),
    ("name", rf"(?:姓名|联系人|患者姓名|家属姓名)(?:是|为)?[:：\s]*({_HAN}{{2,4}}(?:·{_HAN}{{1,6}})?)"),
    ("name", rf"(?:我叫|名叫|我的名字(?:是|叫))[:：\s]*([{_SURNAMES}]{_HAN}{{1,2}})"),
    ("name", rf"([{_SURNAMES}](?:某{{1,2}}|{_HAN}{{0,2}}?))(?:医生|大夫|主任|教授|护士|先生|女士)"),
    ("name", rf"(?:{_WESTERN})((?:[A-Z][a-z]+)(?: [A-Z][a-z]+){{0,2}})"),
)
"""Kind and pattern; a group, where it has one, is what goes."""
_COMPILED = [(kind, re.compile(pattern)) for kind, pattern in _RULES]


def by_rules(text: str) -> tuple[str, Counter[str]]:
    """Return a text without what the rules find, and how much of each kind that was."""
    counts = Counter[str]()
    for kind, pattern in _COMPILED:

        def replaced(match: re.Match[str], kind: str = kind) -> str:
            if kind == "card" and not _luhn(match[0]):
                return match[0]
            counts[kind] += 1
            start, end = (at - match.start() for at in match.span(match.lastindex or 0))
            return f"{match[0][:start]}[{kind}]{match[0][end:]}"

        text = pattern.sub(replaced, text)
    return text, counts


def run_anonymise(source: Path, output: Path, config: Config | None, *, replay: bool = False) -> dict[str, Any]:
    """Write the rows of a file without personal data, by rules and by the model of a configuration; return the counts.

    All texts of a row are looked at, also in lists and objects; ids and licenses are kept as they are.
    """
    report: dict[str, Counter[str]] = {name: Counter() for name in ("rows", "by_rules", "by_model")}

    def clean(text: str) -> str:
        text, found = by_rules(text)
        report["by_rules"].update(found)
        return text

    def rows(caller: Caller | None = None) -> Iterator[dict[str, Any]]:
        given = read_rows(source)
        while batch := list(islice(given, _ROWS)):
            changed = [_each(row, clean) for row in batch]
            checked = _by_model(changed, caller, config, report["by_model"]) if caller and config else changed
            for before, after in zip(batch, checked, strict=True):
                report["rows"]["left_out" if after is None else "unchanged" if after == before else "changed"] += 1
            yield from (row for row in checked if row is not None)

    if config and (model := config.settings.anonymiser):
        with calling(config.folder / LEDGER, config.settings.judging.max_cost, [model], replay) as (_, [caller]):
            written = write_rows(output, rows(caller))
    else:
        written = write_rows(output, rows())
    return {"file": str(output), "written": written} | {name: dict(counts) for name, counts in report.items()}


def _by_model(rows: Rows, caller: Caller, config: Config, counts: Counter[str]) -> list[dict[str, Any] | None]:
    """Let the model name what is personal in each row; None for a row that it did not check."""
    texts: list[list[str]] = []
    for row in rows:
        texts.append([])
        _each(row, lambda text, own=texts[-1]: own.append(text) or text)  # type: ignore[misc]
    prompts = [render(f"anonymise.{config.settings.judging.language}", text="\n".join(own)) for own in texts]
    found = caller.ask_all(prompts, lambda _, text: _spans(text), config.settings.judging.attempts)
    return [None if spans is None else _without(row, spans, counts) for row, spans in zip(rows, found, strict=True)]


def _spans(text: str) -> dict[str, str] | None:
    answer = read_object(text).get("personal")
    if not isinstance(answer, list) or not all(isinstance(each, dict) for each in answer):
        return None
    pairs = ((str(each.get("text") or ""), str(each.get("kind") or "")) for each in answer)
    return {text: kind for text, kind in pairs if 2 <= len(text) <= _LONGEST and re.fullmatch("[a-z]{1,12}", kind)}


def _without(row: dict[str, Any], spans: dict[str, str], counts: Counter[str]) -> dict[str, Any]:
    def clean(text: str) -> str:
        for span in sorted(spans, key=len, reverse=True):
            counts[spans[span]] += text.count(span)
            text = text.replace(span, f"[{spans[span]}]")
        return text

    return dict(_each(row, clean))


def _each(value: Any, change: Callable[[str], str]) -> Any:
    """Return a row with every text changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_each(each, change) for each in value]
    if isinstance(value, dict):
        return {key: each if key in KEPT else _each(each, change) for key, each in value.items()}
    return value
