"""The official SDK from version 2 on, and an agent's loop around it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from session import PATIENCE, Agent, Asked, agent_of, function, longest, run


@asynccontextmanager
async def opens(asked: Asked) -> AsyncIterator[Agent]:
    if asked.url:
        http = httpx2.AsyncClient(headers=asked.headers, timeout=PATIENCE)
        server: Any = streamable_http_client(asked.url, http_client=http)
    else:
        server = StdioServerParameters(command=asked.command, args=list(asked.args), env=asked.env)
    async with Client(server, read_timeout_seconds=PATIENCE) as session:
        tools = (await session.list_tools()).tools

        async def calls(name: str, arguments: dict[str, Any]) -> str:
            result = await session.call_tool(name, arguments)
            text = "\n".join(block.text for block in result.content if block.type == "text")
            return longest(text, result.structured_content)

        yield agent_of([function(tool.name, tool.description, tool.input_schema) for tool in tools], calls, asked)


run(opens)
