// Three turns with a tool through Vercel's AI SDK, on its default API: `node vercel.mjs URL MODEL` prints what came of it as JSON.

import { createOpenAI } from '@ai-sdk/openai';
import { generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';

const [url, model] = process.argv.slice(2);
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: 'none' });
const cities = [];
const get_weather = tool({
  description: 'The weather of a city',
  inputSchema: jsonSchema({ type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }),
  execute: async ({ city }) => {
    cities.push(city);
    return `${city}: 18 degrees`;
  },
});

const messages = [];
const answers = [];
for (const [turn, content] of ['The weather in Århus?', 'And in Oslo?', 'Thanks.'].entries()) {
  messages.push({ role: 'user', content });
  const request = { model: openai(model), messages, tools: { get_weather }, stopWhen: stepCountIs(3), maxRetries: 0 };
  const result = turn === 1 ? streamText(request) : await generateText(request);
  answers.push(await result.text);
  messages.push(...(await result.responseMessages));
}
console.log(JSON.stringify({ answers, cities, roles: messages.map((message) => message.role) }));
