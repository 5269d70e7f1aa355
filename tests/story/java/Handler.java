import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRecord;

class Handler {
  static void handle(ConsumerRecord<byte[], byte[]> record) {
    var found = Pattern.compile("\"fails\": (\\d+)").matcher(new String(record.value()));
    found.find();
    var header = record.headers().lastHeader("retry-attempt");
    int fails = Integer.parseInt(found.group(1));
    int attempt = header == null ? 0 : Integer.parseInt(new String(header.value()));
    if (attempt < fails) throw new IllegalStateException("attempt " + attempt + " of " + fails);
  }
}
