"""A Llama of a GGUF file in plain torch, generating in many slots at once.

A slot feeds its prompt token by token, then its own samples; a finished slot gets the next prompt. So one step, always of the
same shape, is all there is, and it is captured as a CUDA graph.
"""
import math

import torch
import torch.nn.functional as F

from .gguf import Gguf, tokenizer


class Teacher:
    def __init__(self, path, device, dtype=torch.bfloat16):
        g = Gguf(path)
        m = g.meta
        if m["general.architecture"] != "llama":
            raise ValueError(f"{path} is no Llama")
        self.tok, self.device, self.dtype = tokenizer(m), device, dtype
        self.eos = m["tokenizer.ggml.eos_token_id"]
        self.heads, self.kv_heads = m["llama.attention.head_count"], m["llama.attention.head_count_kv"]
        self.dim, self.eps = m["llama.embedding_length"], m["llama.attention.layer_norm_rms_epsilon"]
        self.hd = self.dim // self.heads
        self.theta = m["llama.rope.freq_base"]
        put = lambda name: torch.from_numpy(g.tensor(name)).to(device, dtype)
        self.embed, self.norm = put("token_embd.weight"), put("output_norm.weight")
        self.head = put("output.weight") if "output.weight" in g.infos else self.embed
        names = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
        self.layers = []
        for l in range(m["llama.block_count"]):
            w = {n: put(f"blk.{l}.{n}.weight") for n in names}
            w["qkv"] = torch.cat([w.pop(n) for n in ("attn_q", "attn_k", "attn_v")])
            w["gate_up"] = torch.cat([w.pop(n) for n in ("ffn_gate", "ffn_up")])
            self.layers.append(w)

    def rms(self, x, w):
        f = x.float()
        return (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + self.eps)).to(self.dtype) * w

    def rotate(self, x, cos, sin):
        """x [B,heads,hd]; GGUF orders rows so that neighbours rotate together"""
        a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        c, s = cos.unsqueeze(1), sin.unsqueeze(1)
        return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2).to(self.dtype)

    def forward(self, token, pos, cache, bias, cos, sin):
        """token, pos [B]; cache per layer (k, v) [B,kv,T,hd]; bias [B,1,1,T] -> logits [B,V]"""
        B, G = token.shape[0], self.heads // self.kv_heads
        rows = torch.arange(B, device=self.device)
        x = F.embedding(token, self.embed)
        for w, (kc, vc) in zip(self.layers, cache):
            h = F.linear(self.rms(x, w["attn_norm"]), w["qkv"]).view(B, -1, self.hd)
            q, k, v = h.split((self.heads, self.kv_heads, self.kv_heads), 1)
            q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
            kc[rows, :, pos] = k
            vc[rows, :, pos] = v
            s = torch.matmul(q.view(B, self.kv_heads, G, self.hd), kc.transpose(2, 3)).float() * self.hd ** -0.5 + bias
            o = torch.matmul(torch.softmax(s, -1).to(self.dtype), vc).reshape(B, -1)
            x = x + F.linear(o, w["attn_output"])
            g, u = F.linear(self.rms(x, w["ffn_norm"]), w["gate_up"]).chunk(2, -1)
            x = x + F.linear(F.silu(g) * u, w["ffn_down"])
        return F.linear(self.rms(x, self.norm), self.head)


class Slots:
    """B generations side by side, each at most T tokens with its prompt"""

    def __init__(self, teacher, B, T, temperature=0.8, min_p=0.05):
        self.m, self.B, self.T, self.temperature, self.min_p = teacher, B, T, temperature, min_p
        dev, m = teacher.device, teacher
        self.buf = torch.zeros(B, T, dtype=torch.long, device=dev)
        self.pos, self.n_prompt = torch.zeros(B, dtype=torch.long, device=dev), torch.ones(B, dtype=torch.long, device=dev)
        self.done = torch.ones(B, dtype=torch.bool, device=dev)
        self.cache = [tuple(torch.zeros(B, m.kv_heads, T, m.hd, dtype=m.dtype, device=dev) for _ in "kv") for _ in m.layers]
        freq = 1.0 / m.theta ** (torch.arange(0, m.hd, 2, dtype=torch.float32) / m.hd)
        angle = torch.outer(torch.arange(T, dtype=torch.float32), freq)
        self.cos, self.sin = angle.cos().to(dev), angle.sin().to(dev)
        self.rows, self.columns = torch.arange(B, device=dev), torch.arange(T, device=dev)
        self.graph = None

    @torch.no_grad()
    def step(self):
        pos, T = self.pos, self.T
        bias = torch.zeros(self.B, T, device=pos.device).masked_fill_(self.columns > pos.unsqueeze(1), -torch.inf)
        token = self.buf[self.rows, pos]
        logits = self.m.forward(token, pos, self.cache, bias[:, None, None], self.cos[pos], self.sin[pos]).float()
        if self.temperature > 0:
            logits = logits / self.temperature
            floor = logits.amax(-1, keepdim=True) + math.log(self.min_p)
            gumbel = -torch.log(torch.empty_like(logits).exponential_())
            logits = torch.where(logits < floor, -torch.inf, logits + gumbel)
        after = (pos + 1).clamp_max(T - 1)
        known = self.buf[self.rows, after]
        prompt = pos + 1 < self.n_prompt
        token = torch.where(prompt | self.done, known, logits.argmax(-1))
        self.buf[self.rows, after] = token
        self.pos.copy_(torch.where(self.done, pos, after))
        self.done |= (~prompt & (token == self.m.eos)) | (self.pos >= T - 1)

    def run(self, steps):
        if self.buf.is_cuda and self.graph is None:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    self.step()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.step()
        for _ in range(steps):
            if self.graph is not None:
                self.graph.replay()
            else:
                self.step()

    def finished(self):
        """-> [(slot, generated ids, whether the model ended it)]"""
        slots = self.done.nonzero().flatten()
        buf, pos, n = (t[slots].cpu().tolist() for t in (self.buf, self.pos, self.n_prompt))
        out = []
        for s, row, p, k in zip(slots.tolist(), buf, pos, n):
            ended = row[p] == self.m.eos and p >= k
            out.append((s, row[k:p if ended else p + 1], ended))
        return out

    def load(self, prompts):
        """{slot: ids}; a prompt has to leave room for an answer"""
        if not prompts:
            return
        slots = torch.tensor(list(prompts), device=self.buf.device)
        rows = torch.zeros(len(prompts), self.T, dtype=torch.long)
        for i, ids in enumerate(prompts.values()):
            rows[i, :len(ids)] = torch.tensor(ids)
        self.buf[slots] = rows.to(self.buf.device)
        self.n_prompt[slots] = torch.tensor([len(i) for i in prompts.values()], device=self.buf.device)
        self.pos[slots] = 0
        self.done[slots] = False
