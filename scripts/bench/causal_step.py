"""A whole step of polychromic training with PEFT and transformers: work step of causal_reference.py.

The algorithm is that of `hrm_train train task=polychromic` with its defaults (docs/polychromic.md, "A step"): answers
to the prompts of all micro-batches, written in one call of generate (as batched as it can be, since weights do not
change before the optimizer); sentence embeddings of all answers at once; their diversity, and that without each of
them; and for each micro-batch cross-entropy of the responses and the term by the score function, forward and backward.
"""
import itertools
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import command  # noqa: E402

TRAINING = ["eager", "layers", "default", "reduce-overhead"]
GENERATION = ["dynamic", "static"]
WORDS = ["merge", "fp32"]
MODE = f"TRAINING/GENERATION, the one of {', '.join(TRAINING)}, the other of {', '.join(GENERATION)}, " \
       f"and behind it {' or '.join('+' + word for word in WORDS)}"
IGNORED = -100


def parse_mode(text):
    """"default/static+merge" -> ("default", "static", {"merge"}); None of what is no mode."""
    modes, *words = text.split("+")
    training, _, generation = modes.partition("/")
    known = training in TRAINING and generation in GENERATION and set(words) <= set(WORDS)
    return (training, generation, set(words)) if known and len(set(words)) == len(words) else None


def uncompiled(text):
    """The mode without anything that is compiled."""
    _, _, words = parse_mode(text)
    return "+".join(["eager/dynamic", *(word for word in WORDS if word in words)])


def semantic_diversity(torch, embeddings):
    """Of unit vectors (groups, answers, width): D of each group, and (groups, answers) D without each answer. D is the
    mean over pairs of 1 - cosine."""
    n = embeddings.shape[1]
    total = embeddings.sum(1, keepdim=True)

    def of_sums(sums, count):
        return (count * count - sums.square().sum(-1)) / max(count * (count - 1), 1)

    return of_sums(total, n)[:, 0], of_sums(total - embeddings, n - 1)


class Steps:
    def __init__(self, torch, args, model):
        from tokenizers import BertWordPieceTokenizer, Tokenizer
        from transformers import BertModel
        self.torch, self.args, self.model = torch, args, model.eval()  # nothing drops out; no mode is switched
        self.training, self.generation, words = parse_mode(args.mode)
        self.merges, self.autocast = "merge" in words, "fp32" in words
        self.cuda = args.device == "cuda"
        self.weights = [p for p in model.parameters() if p.requires_grad]
        self.parameters = sum(p.numel() for p in self.weights)
        self.optimizer = torch.optim.AdamW(self.weights, lr=2e-4, weight_decay=0.01, fused=self.cuda)
        self.tokenizer = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
        self.read_rows()
        dtype = torch.bfloat16 if self.cuda else torch.float32
        self.encoder = BertModel.from_pretrained(args.encoder, dtype=dtype, add_pooling_layer=False,
                                                 attn_implementation="sdpa").to(args.device).eval()
        limits = json.loads((args.encoder / "sentence_bert_config.json").read_text(encoding="utf-8"))
        self.words = BertWordPieceTokenizer(str(args.encoder / "vocab.txt"))
        self.words.enable_truncation(limits["max_seq_length"])
        self.words.enable_padding()
        self.options = dict(max_new_tokens=args.new, min_new_tokens=args.new, num_return_sequences=args.samples,
                            do_sample=True, temperature=args.temperature, top_p=1.0, top_k=0, use_cache=True,
                            pad_token_id=0, eos_token_id=None)
        if self.generation == "static":
            self.options["cache_implementation"] = "static"
        self.layers, self.compiled = self.layers_of(model), None
        self.passes = dict(responses=self.response_loss, answers=self.answer_loss)
        if self.training == "layers":
            self.compiled = [torch.compile(layer.forward, dynamic=False) for layer in self.layers]
            self.token_losses = torch.compile(self.token_losses, dynamic=False)
        elif self.training != "eager":
            mode = None if self.training == "default" else self.training
            self.passes = {name: torch.compile(call, mode=mode, dynamic=False) for name, call in self.passes.items()}

    @staticmethod
    def layers_of(model):
        return model.get_base_model().model.layers

    def read_rows(self):
        """Examples as rows of `tokens` positions and the labels that follow them, with prompts of one length, so that
        answers need no padding either."""
        torch, a = self.torch, self.args
        eos = self.tokenizer.token_to_id("<eos>")
        prompts, rows = [], []
        for line in a.rows_file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            prompt, response = (self.tokenizer.encode(record[key]).ids for key in ("prompt", "response"))
            row = (prompt + response + [eos])[:a.tokens + 1]
            if len(prompt) != a.prompt or len(row) != a.tokens + 1:
                raise command.Failure(command.DATA, f"{a.rows_file}: a prompt of {len(prompt)} tokens in a row of "
                                                    f"{len(row)}, not {a.prompt} in {a.tokens + 1}")
            prompts.append(prompt)
            rows.append(row)
        if len(rows) < a.batch or a.batch % a.rows:
            raise command.Failure(command.DATA, f"{a.rows_file}: {len(rows)} examples for steps of {a.batch} by "
                                                f"{a.rows}")
        all_rows = torch.tensor(rows)
        self.prompts = torch.tensor(prompts, device=a.device)
        self.ids, self.labels = (part.contiguous().to(a.device) for part in (all_rows[:, :-1], all_rows[:, 1:]))
        self.labels[:, :a.prompt - 1] = IGNORED

    # ---- the two losses ----

    def token_losses(self, logits, labels):
        return self.torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten(),
                                                      ignore_index=IGNORED, reduction="none")

    def response_loss(self, ids, labels, tokens):
        """Cross-entropy, a mean over the labelled tokens of the whole step."""
        logits = self.model(input_ids=ids, use_cache=False).logits
        return self.token_losses(logits, labels).sum() / tokens

    def answer_loss(self, ids, labels, kept, weights):
        """-lambda / G * sum of A * log p(answer) / longest answer, with the sampler's temperature."""
        logits = self.model(input_ids=ids, use_cache=False, logits_to_keep=kept).logits / self.args.temperature
        return (self.token_losses(logits, labels).view(labels.shape).sum(1) * weights).sum()

    # ---- the parts of a step ----

    def generate(self, prompts):
        torch, a = self.torch, self.args
        with torch.no_grad():
            out = self.model.generate(input_ids=prompts, attention_mask=torch.ones_like(prompts), **self.options)
        if out.shape != (a.batch * a.samples, a.prompt + a.new):
            raise command.Failure(command.DATA, f"generate gave rows of {tuple(out.shape)}")
        return out

    def encode(self, answers):
        torch = self.torch
        texts = [text.strip() for text in self.tokenizer.decode_batch(answers.tolist())]
        found = self.words.encode_batch(texts)
        ids, mask = (torch.tensor([getattr(one, part) for one in found], device=self.args.device)
                     for part in ("ids", "attention_mask"))
        with torch.no_grad():
            hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        mean = (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        self.encoded_tokens = int(mask.sum())
        return torch.nn.functional.normalize(mean, dim=-1).view(self.args.batch, self.args.samples, -1)

    def answer_weights(self, embeddings):
        """What each answer's log-probability is multiplied by: lambda * A / (G * longest answer)."""
        total, without = semantic_diversity(self.torch, embeddings)
        self.diversity = total.mean()
        return ((total.unsqueeze(1) - without) * (self.args.weight / (self.args.batch * self.args.new))).flatten()

    def train(self, ids, labels, out, weights):
        torch, a = self.torch, self.args
        tokens = labels.ne(IGNORED).sum()
        # The last token predicts none; widths are a multiple of 8, as products like them.
        width = -(-(a.prompt + a.new - 1) // 8) * 8
        rows = torch.nn.functional.pad(out[:, :-1], (0, width - (a.prompt + a.new - 1)))
        answers = out[:, a.prompt:]
        kept = torch.arange(a.prompt - 1, a.prompt + a.new - 1, device=a.device)
        self.losses = []
        self.use_compiled_layers(True)
        for micro in range(a.batch // a.rows):
            part = slice(micro * a.rows, (micro + 1) * a.rows)
            sampled = slice(part.start * a.samples, part.stop * a.samples)
            for name, inputs in (("responses", (ids[part], labels[part], tokens)),
                                 ("answers", (rows[sampled], answers[sampled], kept, weights[sampled]))):
                with torch.autocast(a.device, torch.bfloat16, enabled=self.autocast):
                    loss = self.passes[name](*inputs)
                loss.backward()
                self.losses.append(loss.detach().clone())
        self.use_compiled_layers(False)
        self.norm = torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def use_compiled_layers(self, on):
        """In training alone: generation has other shapes in each call."""
        for layer, compiled in zip(self.layers, self.compiled or []):
            if on:
                layer.forward = compiled
            else:
                del layer.forward  # the class's own

    # ---- a step ----

    def step(self, i):
        a, times = self.args, dict.fromkeys(("merge", "generate", "encode", "diversity", "train"), 0.0)

        def timed(name, call, *inputs):
            start = time.perf_counter()
            result = call(*inputs)
            if self.cuda:
                self.torch.cuda.synchronize()
            times[name] += (time.perf_counter() - start) * 1e3
            return result

        first = i * a.batch % (len(self.ids) - a.batch + 1)
        part = slice(first, first + a.batch)
        start = time.perf_counter()
        if self.merges:
            timed("merge", self.model.merge_adapter)
        out = timed("generate", self.generate, self.prompts[part])
        if self.merges:
            timed("merge", self.model.unmerge_adapter)
        embeddings = timed("encode", self.encode, out[:, a.prompt:])
        weights = timed("diversity", self.answer_weights, embeddings)
        timed("train", self.train, self.ids[part], self.labels[part], out, weights)
        return (time.perf_counter() - start) * 1e3, times

    def warm_up(self):
        for i in range(self.args.warmup):
            self.step(i)

    def run(self, count, seconds=0):
        """So many steps, or as many as begin within `seconds`."""
        cuda = self.torch.cuda
        if self.cuda:
            cuda.synchronize()
            cuda.reset_peak_memory_stats()
        steps, begin = [], time.perf_counter()
        for i in itertools.takewhile(lambda _: not seconds or time.perf_counter() - begin < seconds, range(count)):
            steps.append(self.step(i))
        a = self.args
        parts = {f"{name}_ms": round(statistics.median(times[name] for _, times in steps), 3) for name in steps[0][1]}
        return dict(ms_per_step=round(statistics.median(ms for ms, _ in steps), 3), steps=len(steps), **parts,
                    ms_each=[round(ms, 1) for ms, _ in steps], answer_tokens=a.batch * a.samples * a.new,
                    encoded_tokens=self.encoded_tokens, label_tokens=int(self.labels[:a.batch].ne(IGNORED).sum()),
                    peak_bytes=cuda.max_memory_allocated() if self.cuda else None,
                    reserved_bytes=cuda.max_memory_reserved() if self.cuda else None)
