"""LangChain's adapter, with its agent and its model for OpenAI."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_openai import ChatOpenAI
from session import KEY, MODEL, Agent, Asked, run


@asynccontextmanager
async def opens(asked: Asked) -> AsyncIterator[Agent]:
    if asked.url:
        server: Any = {"transport": "streamable_http", "url": asked.url, "headers": asked.headers}
    else:
        server = {"transport": "stdio", "command": asked.command, "args": list(asked.args), "env": asked.env}
    tools = await MultiServerMCPClient({"skillhost": server}).get_tools()
    model = ChatOpenAI(model=MODEL, base_url=asked.provider.url, api_key=KEY, max_retries=0)
    agent = create_agent(model, tools)

    async def does(task: str) -> str:
        said = await agent.ainvoke({"messages": [{"role": "user", "content": task}]})
        return said["messages"][-1].content

    yield Agent([tool.name for tool in tools], does)


run(opens)
