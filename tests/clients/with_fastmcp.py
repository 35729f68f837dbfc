"""FastMCP's client, given what clients' configuration files hold."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastmcp import Client
from session import PATIENCE, Agent, Asked, agent_of, function, longest, run


@asynccontextmanager
async def opens(asked: Asked) -> AsyncIterator[Agent]:
    if asked.url:
        server: dict[str, Any] = {"url": asked.url, "headers": asked.headers}
    else:
        server = {"command": asked.command, "args": list(asked.args), "env": asked.env}
    async with Client({"mcpServers": {"skillhost": server}}, timeout=PATIENCE) as client:
        tools = await client.list_tools()

        async def calls(name: str, arguments: dict[str, Any]) -> str:
            result = await client.call_tool_mcp(name, arguments)
            text = "\n".join(block.text for block in result.content if block.type == "text")
            structured = getattr(result, "structured_content", None) or getattr(result, "structuredContent", None)
            return longest(text, structured)

        def schema(tool: Any) -> dict[str, Any]:
            return getattr(tool, "input_schema", None) or tool.inputSchema

        yield agent_of([function(tool.name, tool.description, schema(tool)) for tool in tools], calls, asked)


run(opens)
