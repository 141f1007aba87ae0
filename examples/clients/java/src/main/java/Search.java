import static io.qdrant.client.QueryFactory.nearest;
import static io.qdrant.client.ValueFactory.value;
import static io.qdrant.client.WithPayloadSelectorFactory.enable;

import io.qdrant.client.QdrantClient;
import io.qdrant.client.QdrantGrpcClient;
import io.qdrant.client.grpc.Points.Document;
import io.qdrant.client.grpc.Points.PointGroup;
import io.qdrant.client.grpc.Points.QueryPointGroups;

/**
 * Searches a CARE vector by text. The server asks `care serve`, because its inference.address says so.
 *
 * <p>mvn -q compile exec:java -Dexec.args="COLLECTION VECTOR MODEL QUERY"
 */
public final class Search {
  public static void main(String[] arguments) throws Exception {
    int port = Integer.parseInt(System.getenv().getOrDefault("QDRANT_GRPC_PORT", "6334"));
    try (var client = new QdrantClient(QdrantGrpcClient.newBuilder("localhost", port, false).build())) {
      var query = Document.newBuilder().setText(arguments[3]).setModel(arguments[2]).build();
      // A long document has several points. One group is one document, by its best point.
      var request =
          QueryPointGroups.newBuilder()
              .setCollectionName(arguments[0])
              .setUsing(arguments[1])
              .setQuery(nearest(query))
              .setGroupBy("doc_id")
              .setGroupSize(1)
              .setLimit(10)
              .setWithPayload(enable(true))
              .build();
      for (PointGroup group : client.queryGroupsAsync(request).get()) {
        var hit = group.getHits(0);
        var payload = hit.getPayloadMap();
        System.out.printf(
            "%.9f\t%s\t%s\t%s%n",
            hit.getScore(),
            payload.get("doc_id").getStringValue(),
            payload.getOrDefault("title", value("")).getStringValue(),
            payload.get("text").getStringValue());
      }
    }
  }
}
