"""The official SDK before version 2: its own sessions, and an agent's loop around them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client
from session import PATIENCE, Agent, Asked, agent_of, function, longest, run


@asynccontextmanager
async def opens(asked: Asked) -> AsyncIterator[Agent]:
    if asked.url:
        transport = streamablehttp_client(asked.url, headers=asked.headers)
    else:
        transport = stdio_client(StdioServerParameters(command=asked.command, args=list(asked.args), env=asked.env))
    async with transport as streams:
        async with ClientSession(streams[0], streams[1], timedelta(seconds=PATIENCE)) as session:
            await session.initialize()
            tools = (await session.list_tools()).tools

            async def calls(name: str, arguments: dict[str, Any]) -> str:
                result = await session.call_tool(name, arguments)
                text = "\n".join(block.text for block in result.content if block.type == "text")
                return longest(text, getattr(result, "structuredContent", None))

            yield agent_of([function(tool.name, tool.description, tool.inputSchema) for tool in tools], calls, asked)


run(opens)
