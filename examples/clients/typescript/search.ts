// Searches a CARE vector by text. The server asks `care serve`, because its inference.address says so.
//
//   npx tsx search.ts COLLECTION VECTOR MODEL QUERY
import { QdrantClient } from "@qdrant/js-client-rest";

const [collection, vector, model, query] = process.argv.slice(2);
const client = new QdrantClient({ url: process.env.QDRANT_URL ?? "http://localhost:6333" });
const { points } = await client.query(collection, {
  query: { text: query, model },
  using: vector,
  limit: 10,
  with_payload: true,
});
for (const hit of points) {
  console.log(`${hit.score.toFixed(9)}\t${hit.id}\t${hit.payload?.title ?? ""}`);
}
