"""Personal data out of texts: by rules, and by a model over a real socket. All persons are made up."""

import json
import re
from pathlib import Path

import pytest
from care_data.anonymise import by_rules, run_anonymise
from care_data.config import load_config
from care_data.wire import BudgetReached

from tests.care_data.clinic import SAMPLE, config, rater, rows
from tests.care_data.endpoint import Endpoint, Faults

PERSONAL = {
    "我叫王小明，今年35岁": "我叫[name]，今年35岁",
    "电话13812345678或010-62345678": "电话[phone]或[phone]",
    "call (555) 123-4567 or +1 415-555-2671": "call [phone] or [phone]",
    "身份证号11010519900307234X": "身份证号[id]",
    "SSN 123-45-6789, MRN: A12345": "SSN [id], MRN: [number]",
    "住院号：ZY20230456": "住院号：[number]",
    "微信号wxid_abc123，邮箱li.lei@example.com": "微信号[account]，邮箱[email]",
    "卡号6222 0212 3456 7890 128": "卡号[card]",
    "患者姓名：欧阳娜娜，出生日期：1990年3月7日": "患者姓名：[name]，出生日期：[birth]",
    "看 https://example.com/u/7?x=1，谢谢": "看 [link]，谢谢",
    "浙江省杭州市西湖区文三路100号3栋502室": "[address]",
    "感谢李医生和张某某女士": "感谢[name]医生和[name]女士",
    "Dr. Watson born on 1970-01-02": "Dr. [name] born on [birth]",
}
NOT_PERSONAL = [
    "血压140/90mmHg，HbA1c 7.2%，白细胞12.5×10^9/L，2023年5月12日起服用0.25g",
    "高血压患者应咨询主任医生，由于医生说维生素B12偏低，编号为13800",
    "The patient took 500 mg twice a day; ICD-10 E11.9, 10-20 units.",
]


@pytest.mark.parametrize("text", PERSONAL)
def test_rules_find_what_has_a_form(text: str) -> None:
    clean, counts = by_rules(text)
    assert clean == PERSONAL[text]
    assert counts.total() == clean.count("[")
    assert by_rules(clean) == (clean, {})


@pytest.mark.parametrize("text", NOT_PERSONAL)
def test_rules_leave_the_facts_of_a_text(text: str) -> None:
    assert by_rules(text) == (text, {})


def test_rules_leave_the_sample_as_it_is() -> None:
    texts = [row["text"] for name in ("corpus", "queries") for row in rows(SAMPLE / f"{name}.jsonl")]
    changed = [text for text in texts if by_rules(text)[0] != text]
    assert len(texts) > 390 and len(changed) <= 0.01 * len(texts), changed


def test_a_model_finds_names_and_a_row_that_it_did_not_check_is_left_out(tmp_path: Path) -> None:
    given = [
        {"id": "a@b.cn", "query": f"小雅第{number}次发烧怎么办", "positive": "多喝水", "license": "cc-by-4.0"}
        for number in range(40)
    ]
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given), encoding="utf-8")
    path = config(tmp_path, "http://x", {"ann": 1}, questions=1, judging="attempts = 2")
    with Endpoint(rater({}), Faults(wrong_json=0.4, busy=0.2)) as endpoint:
        endpoint.write = lambda prompt: json.dumps(
            {"personal": [{"text": "小雅", "kind": "name"}] * ("小雅" in prompt)}
        )
        table = f'[anonymiser]\nname = "finder"\nurl = "{endpoint.url}"\nmodel = "finder"\nfamily = "x"\n'
        path.write_text(path.read_text(encoding="utf-8") + table + "input_price = 1.0\nmax_wait_seconds = 0.05\n")
        loaded = load_config(path)
        report = run_anonymise(tmp_path / "raw.jsonl", tmp_path / "clean.jsonl", loaded)
        assert max(endpoint.bill.billed.values()) == 1
    clean = rows(tmp_path / "clean.jsonl")
    assert 0 < report["rows"]["left_out"] < 20 and len(clean) == report["written"] == 40 - report["rows"]["left_out"]
    assert all(re.fullmatch(r"\[name\]第\d+次发烧怎么办", row["query"]) for row in clean)
    assert all(row["id"] == "a@b.cn" and row["license"] == "cc-by-4.0" for row in clean)
    assert report["by_model"] == {"name": len(clean)} and "小雅" not in json.dumps(report, ensure_ascii=False)
    again = run_anonymise(tmp_path / "raw.jsonl", tmp_path / "again.jsonl", loaded, replay=True)
    assert rows(tmp_path / "again.jsonl") == clean and again["rows"] == report["rows"]
    path.write_text(path.read_text(encoding="utf-8").replace("[judging]", "[judging]\nmax_cost = 1e-9"))
    (tmp_path / "clinic" / "calls.sqlite").unlink()
    with pytest.raises(BudgetReached, match="raise max_cost"):
        run_anonymise(tmp_path / "raw.jsonl", tmp_path / "clean.jsonl", load_config(path))
