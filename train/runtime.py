"""What every training command shares: ranks, the log, a wall-clock budget, checkpoints that survive being killed."""
import json
import os
import time

import torch
import torch.distributed as dist


class Ranks:
    """one process per GPU (torchrun), or just one"""

    def __init__(self):
        self.world, self.rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
        cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(self.device)
        if self.world > 1:
            dist.init_process_group("nccl" if cuda else "gloo")

    def mean_gradients(self, parameters):
        if self.world > 1:
            grads = [p.grad for p in parameters if p.grad is not None]
            flat = torch.cat([g.reshape(-1) for g in grads])
            dist.all_reduce(flat)
            flat /= self.world
            for g, f in zip(grads, flat.split([g.numel() for g in grads])):
                g.copy_(f.view_as(g))

    def sum(self, t):
        if self.world > 1:
            dist.all_reduce(t)
        return t

    def agree(self, value):
        """the value of rank 0"""
        if self.world == 1:
            return value
        t = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.broadcast(t, 0)
        return float(t)

    def close(self):
        if self.world > 1:
            dist.destroy_process_group()


class Log:
    """JSON lines, appended; only rank 0 writes"""

    def __init__(self, path, ranks):
        self.file = open(path, "a", encoding="utf8") if ranks.rank == 0 else None
        self.begin = time.time()

    def __call__(self, **kw):
        if self.file:
            line = json.dumps({"t": round(time.time() - self.begin, 1), **{k: rounded(v) for k, v in kw.items()}})
            print(line, flush=True)
            self.file.write(line + "\n")
            self.file.flush()


def rounded(v):
    if isinstance(v, float):
        return round(v, 5)
    if isinstance(v, dict):
        return {k: rounded(x) for k, x in v.items()}
    return [rounded(x) for x in v] if isinstance(v, list) else v


def save(path, state):
    """whole or not at all"""
    torch.save(state, path + ".part")
    os.replace(path + ".part", path)


def load(path, device):
    return torch.load(path, map_location=device, weights_only=True) if os.path.exists(path) else None


class Clock:
    """seconds of a phase, over all the commands that worked on it, and the limit of this command"""

    def __init__(self, seconds, spent, stop_at):
        self.seconds, self.spent, self.stop_at, self.begin = seconds, spent, stop_at, time.time()

    def elapsed(self):
        return self.spent + time.time() - self.begin

    def pause(self, seconds):
        """time that is not the phase's: compiling"""
        self.begin += seconds

    def out_of_time(self):
        return time.time() >= self.stop_at
