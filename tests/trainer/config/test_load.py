import subprocess
import sys
from pathlib import Path

import pytest
from care_trainer.config import Joint, Run, load_run

from care_qdrant.errors import InputError
from tests.trainer.tiny_run import stage, tiny_run

CONFIGS = sorted((Path(__file__).parents[3] / "trainer/care_trainer/configs").glob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_configuration_is_valid(path: Path) -> None:
    run = load_run(path)
    assert run.stage
    assert path.read_text(encoding="utf-8").startswith("# "), "the first line describes it in `care-train configs`"


def test_all_problems_are_reported_at_once_with_known_keys(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(
        """
        name = "x"
        output = "x"
        dim = "big"
        sead = 1
        [query]
        pooling = "max"
        [document]
        scratch = { layers = 1, hidden = 10, heads = 3, intermediate = 4 }
        [data.pairs]
        files = "pairs.jsonl"
        [[stage]]
        kind = "alignn"
        data = "pairs"
        [[stage]]
        kind = "align"
        data = "pairs"
        margin = 0.1
        """,
        encoding="utf-8",
    )
    with pytest.raises(InputError) as caught:
        load_run(path)
    message = str(caught.value)
    assert "6 problems" in message
    assert "sead: unknown key (known: name, output" in message
    assert "dim: expected a whole number, found 'big'" in message
    assert "query.pooling: expected one of 'cls', 'mean', 'lasttoken', 'own', found 'max'" in message
    assert "data.pairs.files: expected a list" in message
    assert "stage[0].kind: 'alignn' is not a stage" in message
    assert "stage[1].margin: unknown key" in message


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("dim=0", "dim: expected at least 1, found 0"),
        ("seed=-1", "seed: expected at least 0, found -1"),
        ("checkpoint_minutes=-1", "checkpoint_minutes: expected at least 0, found -1"),
        ("stage.joint.learning_rate=0", "stage[1].learning_rate: expected a number above 0, found 0"),
        ("stage.joint.learning_rate=nan", "stage[1].learning_rate: expected a finite number, found nan"),
        ("stage.joint.warmup=1.0", "stage[1].warmup: expected a number below 1, found 1.0"),
        ("stage.joint.temperature=0.0", "stage[1].temperature: expected a number above 0, found 0.0"),
        ("stage.joint.batch_size=0", "stage[1].batch_size: expected at least 1, found 0"),
        ("stage.joint.batch_size=8.0", "stage[1].batch_size: expected a whole number, found 8.0"),
        ("stage.joint.batch_size=true", "stage[1].batch_size: expected a whole number, found True"),
        ("stage.joint.token_dropout=1", "stage[1].token_dropout: expected a number below 1, found 1"),
        ("stage.joint.crop=1.1", "stage[1].crop: expected at most 1, found 1.1"),
        ("stage.joint.symmetric=1", "stage[1].symmetric: expected true or false, found 1"),
        ("stage.joint.matryoshka=[0]", "stage[1].matryoshka[0]: expected at least 1, found 0"),
        (
            "stage.joint.matryoshka=[48, 16]",
            "stage.joint.matryoshka: expected dim 32 among the dimensions, found 48, 16",
        ),
        ("stage.align.sides=[]", "stage[0].sides: expected a list with at least 1 value, found []"),
        ("query.scratch.dropout=1.0", "query.scratch.dropout: expected a number below 1, found 1.0"),
        ("query.scratch.drop=0.1", "query.scratch.drop: unknown key (known: architecture, layers"),
        ("document.lora={ ranks = 8 }", "document.lora.ranks: unknown key (known: rank, alpha, dropout, targets)"),
        ("data.pairs.weights={ a = -1 }", "data.pairs.weights.a: expected at least 0, found -1"),
        ("data.pairs.diversify={ query_threshold = 3.0 }", "diversify.query_threshold: expected at most 2, found 3.0"),
        ("stage.joint.x=1", "stage[1].x: unknown key (known: kind, data"),
        ("name=''", "name: expected a text that is not empty, found ''"),
        ('document={ base = "b", quantization = "nf4" }', "document.quantization: needs lora"),
        ('document={ base = "b", quantization = "int4" }', "expected one of 'nf4', 'int8'"),
        ("document.dtype=float16", "only for a base"),
        ("stage.joint.global_batch_size=8", "stage.joint: give batch_size or global_batch_size, not both"),
        ("data.pairs.tasks={ a = 'rerank' }", "data.pairs.tasks.a: unknown task 'rerank'"),
        ('report_to=["tensorbored"]', "report_to[0]: expected one of 'tensorboard', 'trackio', 'wandb'"),
        ("stage.joint.patience=1", "stage.joint.patience: needs evaluate_steps"),
        ("query.scratch.hidden=33", "hidden 33 is not a multiple of heads 2"),
        ("dim=40", "query.scratch.hidden: 32 is smaller than dim 40"),
        ("query.max_tokens=4096", "query.max_tokens: 4096 is more than its 512 positions"),
        ("query.base=somewhere", "query: give exactly one of base, scratch and static"),
        ("stage.joint.data=none", "stage.joint.data: unknown data set 'none' (known: pairs, texts)"),
        ("stage.joint.name=align", "stage.align: used 2 times"),
        ("stage.joint.name=base", "stage.base: is a folder that every run writes"),
        ("stage.joint.name=rows", "stage.rows: is a folder that every run writes"),
        ("stage.joint.name=../other", "stage.../other.name: expected the name of one folder below the output"),
        ("stage.joint.name=..", "stage....name: expected the name of one folder"),
        ("stage.joint.name=.", "stage...name: expected the name of one folder"),
        ("name=joint", "name: 'joint' is also the folder of a stage"),
        ("name=base", "name: 'base' is also the folder of a stage"),
        ("name=/tmp/model", "name: expected the name of one folder below the output, found '/tmp/model'"),
        ("seed=4294967296", "seed: expected a number below 4.29497e+09"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_what_can(tmp_path: Path, override: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        tiny_run(tmp_path, stage("align"), stage("joint"), overrides=[override])
    assert "1 problem\n" in str(caught.value)
    assert problem in str(caught.value)


def test_a_static_stage_needs_encoders_that_take_the_mean(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"stage\.static: needs document\.pooling = 'mean', found 'lasttoken'"):
        tiny_run(tmp_path, stage("static"), overrides=["query.pooling=mean", "document.pooling=lasttoken"])


def test_a_configuration_is_parsed_without_torch() -> None:
    script = (
        "import sys; from care_trainer.config import find_config, load_run; load_run(find_config('nano'));"
        "print([name for name in ('torch', 'transformers', 'datasets') if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"


def test_an_override_reaches_a_stage_by_its_name(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, stage("joint"), overrides=["stage.joint.learning_rate=5e-5", "seed=7"])
    assert isinstance(run.stage[0], Joint)
    assert run.stage[0].learning_rate == 5e-5
    assert run.seed == 7


@pytest.mark.parametrize("override", ["seed", "stage.none.epochs=1", "name.x=1"])
def test_an_override_that_reaches_nothing_is_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises(InputError, match="--set"):
        tiny_run(tmp_path, stage("joint"), overrides=[override])


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_run(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("name = ", encoding="utf-8")
    with pytest.raises(InputError, match="not TOML"):
        load_run(tmp_path / "broken.toml")


def test_numbers_keep_their_kind(tmp_path: Path) -> None:
    run: Run = tiny_run(tmp_path, stage("joint", epochs=2))
    assert run.stage[0].epochs == 2.0 and isinstance(run.stage[0].epochs, float)
