// The `ollama` package against a server: `node ollama.mjs URL SCENARIO TOKEN` prints what came of it as JSON.

import { Ollama } from 'ollama';

const [url, scenario, token] = process.argv.slice(2);
const client = new Ollama({ host: url });
const admin = new Ollama({ host: url, headers: { 'x-enginebay-token': token } });
const model = 'text';
const asked = (content) => [{ role: 'user', content }];

const weather = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'The weather of a city',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
};

const gather = async (stream, take) => {
  const parts = [];
  for await (const part of stream) parts.push(take(part));
  return parts;
};

const scenarios = {
  async chat() {
    const answer = await client.chat({ model, messages: asked('Say hello.') });
    return { text: answer.message.content, done_reason: answer.done_reason, eval_count: answer.eval_count };
  },

  async stream() {
    const stream = await client.chat({ model, messages: asked('Say hello.'), stream: true });
    const parts = await gather(stream, (part) => part.message.content);
    return { text: parts.join(''), parts: parts.length };
  },

  async tools() {
    const messages = asked('The weather?');
    const { message } = await client.chat({ model, messages, tools: [weather] });
    const [call] = message.tool_calls;
    messages.push(message, { role: 'tool', content: '18 degrees', tool_name: call.function.name });
    const answer = await client.chat({ model, messages, tools: [weather] });
    return { arguments: call.function.arguments, text: answer.message.content };
  },

  async generate() {
    const answer = await client.generate({ model, prompt: 'Say hello.' });
    const stream = await client.generate({ model, prompt: 'Say hello.', stream: true });
    return { text: answer.response, streamed: (await gather(stream, (part) => part.response)).join('') };
  },

  async embed() {
    const { embeddings } = await client.embed({ model: 'vectors', input: ['one', 'two'] });
    return { count: embeddings.length, length: embeddings[0].reduce((sum, value) => sum + value * value, 0) };
  },

  async list() {
    return (await client.list()).models.map((one) => one.model);
  },

  async show() {
    return (await client.show({ model })).capabilities;
  },

  async ps() {
    return (await client.ps()).models.map((one) => one.model);
  },

  async pull() {
    return gather(await admin.pull({ model: 'hf:org/tiny', stream: true }), (part) => part.status);
  },

  async error() {
    try {
      return await client.chat({ model: 'nope', messages: asked('Hi.') });
    } catch (error) {
      return { message: error.message, status: error.status_code };
    }
  },

  async all() {
    const found = {};
    for (const name of Object.keys(scenarios)) if (name !== 'all') found[name] = await scenarios[name]();
    return found;
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
