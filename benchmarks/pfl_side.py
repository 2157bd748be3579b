"""The same federated training on pfl-research (Apple), for pfl_table1.py; needs `pip install pfl[pytorch]`."""

import time

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from round_speed import made_up

USERS, IMAGES = 1000, 50


class Net(torch.nn.Sequential):
    """pfl's CIFAR-10 network: conv 32 and 64, 3×3, pooling, dense 128, dropout."""

    def __init__(self) -> None:
        super().__init__(
            *(torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3), torch.nn.ReLU()),
            *(torch.nn.MaxPool2d(2), torch.nn.Dropout(0.25), torch.nn.Flatten(), torch.nn.Linear(12544, 128)),
            *(torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(128, 10)),
        )

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor, is_eval: bool = False) -> torch.Tensor:
        """Return the mean cross-entropy."""
        self.eval() if is_eval else self.train()
        return F.cross_entropy(self(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs: torch.Tensor, targets: torch.Tensor, is_eval: bool = True) -> dict[str, Weighted]:
        """Return the accuracy."""
        self.eval() if is_eval else self.train()
        right = (self(inputs).argmax(-1) == targets).sum().item()
        return {"accuracy": Weighted(right, len(targets))}


class Clock(TrainingProcessCallback):  # type: ignore[misc]
    """Notes when each round ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
        """Note the time; never stop."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())
        return False, Metrics()


def seconds_a_round(rounds: int) -> float:
    """Return the mean time of a round after the first ten."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = made_up(USERS * IMAGES)
    x = (torch.from_numpy(data.images).permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous().to(device)
    y = torch.from_numpy(data.labels).to(device)
    rows = np.random.default_rng(0).permutation(len(data)).reshape(USERS, IMAGES)

    def user(number: int) -> PyTorchTensorDataset:
        index = torch.from_numpy(rows[number]).to(device)
        return PyTorchTensorDataset(tensors=[x[index], y[index]])

    def users() -> FederatedDataset:
        return FederatedDataset(user, get_user_sampler("minimize_reuse", list(range(USERS))))

    net = Net().to(device)
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds + 10, evaluation_frequency=10**6, train_cohort_size=50, val_cohort_size=0
        ),
        backend=SimulatedBackend(training_data=users(), val_data=users()),
        model=PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)),
        model_train_params=NNTrainHyperParams(local_batch_size=10, local_num_epochs=1, local_learning_rate=0.1),
        model_eval_params=NNEvalHyperParams(local_batch_size=1000),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    return (clock.ends[-1] - clock.ends[9]) / rounds
