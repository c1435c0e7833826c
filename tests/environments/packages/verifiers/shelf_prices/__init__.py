"""An environment as a user of the verifiers package writes one: a tool that looks up prices, and a sum to answer."""

import verifiers.v1 as vf

from shelf_prices.tools import PriceToolset, PriceToolsetConfig

__all__ = ["ShelfTaskset"]


class ShelfData(vf.TaskData):
    first: str
    second: str
    answer: str


class ShelfTask(vf.Task[ShelfData]):
    @vf.stop
    async def enough(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 5

    @vf.reward(weight=0.75)
    async def right(self, trace: vf.Trace) -> float:
        return float((trace.last_reply or "").strip() == self.data.answer)

    @vf.reward(weight=0.25)
    async def looked(self, trace: vf.Trace) -> float:
        return float(trace.num_turns > 1)


class ShelfConfig(vf.TasksetConfig):
    tools: PriceToolsetConfig = PriceToolsetConfig()
    currency: str = "EUR"


class ShelfTaskset(vf.Taskset[ShelfTask, ShelfConfig]):
    @classmethod
    def toolsets(cls, config: ShelfConfig) -> list[vf.Toolset]:
        return [PriceToolset(config.tools)]

    def load(self):
        pairs = [("lamp", "rope"), ("rope", "cup"), ("cup", "lamp")]
        prices = {"lamp": 30, "rope": 7, "cup": 4}
        for first, second in pairs:
            total = f"{prices[first] + prices[second]} {self.config.currency}"
            prompt = f"What do a {first} and a {second} cost together, in {self.config.currency}? Look both up."
            yield ShelfTask(
                ShelfData(prompt=prompt, system_prompt="Answer like: 12 EUR", first=first, second=second, answer=total),
                self.config.task,
            )
