"""Stage ``static`` on a GPU that is not there: torch's fake tensors refuse an operation on two devices.

Forward only: torch's backward pass asks the driver for the device. The losses of the other stages choose tokens by
their values, which fake tensors do not have.
"""

import pytest
import torch
from care_trainer.losses.objectives import InfoNce
from care_trainer.losses.static import StaticLoss
from care_trainer.models.static import Parts, random_static
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

MODE = FakeTensorMode(shape_env=ShapeEnv())


def on_gpu(tensor: Tensor) -> Tensor:
    fake = MODE.from_tensor(tensor.detach(), static_shapes=True)
    with MODE:
        return fake.to("cuda")


def move(module: nn.Module) -> None:
    """What ``module.to("cuda")`` does where there is a GPU."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            part._parameters[name] = parameter if parameter is None else nn.Parameter(on_gpu(parameter))
        for name, buffer in part._buffers.items():
            part._buffers[name] = buffer if buffer is None else on_gpu(buffer)


@pytest.mark.parametrize("stays_behind", [False, True])
def test_the_table_and_its_parts_are_on_one_device(stays_behind: bool) -> None:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2, "ab": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    model = random_static(tokenizer, 8, ["a b ab"], 16).cpu()
    loss = StaticLoss(model, InfoNce(0.05), Parts(model.tokenizer, compose=True), token_dropout=0.1)
    columns = [model.preprocess(texts) for texts in (["a b", "ab"], ["ab a", "b"])]
    features = [
        {key: on_gpu(value) if isinstance(value, Tensor) else value for key, value in column.items()}
        for column in columns
    ]
    move(loss.model if stays_behind else loss)
    with MODE:
        if stays_behind:
            with pytest.raises(Exception, match="convert all Tensors to FakeTensors"):
                loss(features)
        else:
            found = loss(features)
            assert found.device.type == "cuda" and found.requires_grad
            assert loss.parts.fold(model[0].embedding.weight).device == torch.device("cuda:0")
