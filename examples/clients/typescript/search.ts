// Searches a CARE vector by text. The server asks `care serve`, because its inference.address says so.
//
//   npx tsx search.ts COLLECTION VECTOR MODEL QUERY
import { QdrantClient } from "@qdrant/js-client-rest";

const [collection, vector, model, query] = process.argv.slice(2);
const client = new QdrantClient({ url: process.env.QDRANT_URL ?? "http://localhost:6333" });
// A long document has several points. One group is one document, by its best point.
const { groups } = await client.queryGroups(collection, {
  query: { text: query, model },
  using: vector,
  group_by: "doc_id",
  group_size: 1,
  limit: 10,
  with_payload: true,
});
for (const { hits: [hit] } of groups) {
  const { doc_id, title, text } = hit.payload as { doc_id: string; title?: string; text: string };
  console.log([hit.score.toFixed(9), doc_id, title ?? "", text].join("\t"));
}
