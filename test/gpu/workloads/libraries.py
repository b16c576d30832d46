"""Training as its users' libraries do it: libraries.py {trainer,resnet} [--steps N].

`trainer` is Hugging Face's Trainer on a Llama of random weights, `resnet` timm's ResNet-50 with channels last and
automatic mixed precision. Prints losses, live bytes and step times.
"""

import argparse
import time

from common import result, seeded_torch, skip, timed_steps


def trainer(torch, steps):
    import tempfile

    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=12,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=512,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config)
    tokens = torch.randint(0, config.vocab_size, (8 * steps, 512), generator=torch.Generator().manual_seed(7))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    times, losses = [], []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_, **__):
            torch.cuda.synchronize()
            self.began = time.monotonic()

        def on_step_end(self, *_, **__):
            torch.cuda.synchronize()
            times.append(1000 * (time.monotonic() - self.began))

        def on_log(self, arguments, state, control, logs=None, **_):
            if logs and "loss" in logs:
                losses.append(float(logs["loss"]))

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=8,
            max_steps=steps,
            bf16=True,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            optim="adamw_torch",
            dataloader_num_workers=0,
            seed=7,
        )
        Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Clock()]).train()
    return losses, times


def resnet(torch, steps):
    import timm

    model = timm.create_model("resnet50").cuda().to(memory_format=torch.channels_last)
    torch.backends.cudnn.deterministic = True
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(128, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(0, 1000, (128,), device="cuda")
    scaler = torch.amp.GradScaler("cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return timed_steps(torch, step, steps)


def main():
    programs = {"trainer": trainer, "resnet": resnet}
    p = argparse.ArgumentParser()
    p.add_argument("program", choices=sorted(programs))
    p.add_argument("--steps", type=int, default=20)
    a = p.parse_args()
    torch = seeded_torch()
    try:
        values, times = programs[a.program](torch, a.steps)
    except ImportError as error:
        skip(f"{error}")
    result(values, torch.cuda.max_memory_allocated(), times)


main()
