import static io.qdrant.client.QueryFactory.nearest;
import static io.qdrant.client.WithPayloadSelectorFactory.enable;

import io.qdrant.client.QdrantClient;
import io.qdrant.client.QdrantGrpcClient;
import io.qdrant.client.grpc.Points.Document;
import io.qdrant.client.grpc.Points.QueryPoints;
import io.qdrant.client.grpc.Points.ScoredPoint;

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
      var request =
          QueryPoints.newBuilder()
              .setCollectionName(arguments[0])
              .setUsing(arguments[1])
              .setQuery(nearest(query))
              .setLimit(10)
              .setWithPayload(enable(true))
              .build();
      for (ScoredPoint hit : client.queryAsync(request).get()) {
        String title = hit.getPayloadMap().containsKey("title") ? hit.getPayloadMap().get("title").getStringValue() : "";
        System.out.printf("%.9f\t%s\t%s%n", hit.getScore(), hit.getId().getUuid(), title);
      }
    }
  }
}
