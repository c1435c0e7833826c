"""The tools of the shelf, a server of their own as the framework wants it."""

import verifiers.v1 as vf


class PriceToolsetConfig(vf.SharedToolsetConfig):
    pass


class PriceToolset(vf.Toolset[PriceToolsetConfig]):
    TOOL_PREFIX = "shelf"

    @vf.tool
    async def price(self, item: str) -> str:
        """The price of an item on the shelf."""
        prices = {"lamp": 30, "rope": 7, "cup": 4}
        return str(prices[item]) if item in prices else f"no {item} here"


if __name__ == "__main__":
    PriceToolset.run()
