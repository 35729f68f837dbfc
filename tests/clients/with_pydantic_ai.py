"""Pydantic AI, with its model for OpenAI."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from session import KEY, MODEL, PATIENCE, Agent, Asked, run


@asynccontextmanager
async def opens(asked: Asked) -> AsyncIterator[Agent]:
    if asked.url:
        transport: StreamableHttpTransport | StdioTransport = StreamableHttpTransport(asked.url, headers=asked.headers)
    else:
        transport = StdioTransport(command=asked.command, args=list(asked.args), env=asked.env)
    toolset = MCPToolset(transport, read_timeout=PATIENCE, max_retries=3)
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=asked.provider.url, api_key=KEY))
    agent = PydanticAgent(model, toolsets=[toolset])
    async with toolset:
        tools = [tool.name for tool in await toolset.list_tools()]

        async def does(task: str) -> str:
            return (await agent.run(task)).output

        yield Agent(tools, does)


run(opens)
