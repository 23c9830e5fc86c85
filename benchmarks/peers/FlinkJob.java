import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.math.BigDecimal;
import java.time.Instant;
import java.time.ZoneOffset;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.jdbc.JdbcConnectionOptions;
import org.apache.flink.connector.jdbc.JdbcExactlyOnceOptions;
import org.apache.flink.connector.jdbc.JdbcExecutionOptions;
import org.apache.flink.connector.jdbc.core.datastream.sink.JdbcSink;
import org.apache.flink.connector.jdbc.core.datastream.sink.JdbcSinkBuilder;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.KafkaSourceBuilder;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.postgresql.xa.PGXADataSource;

/**
 * Kafka's records into PostgreSQL, in a cluster of this process.
 *
 * <p>Arguments: "xa" or "at-least-once", the JDBC URL, the INSERT statement, its batch size, the topic, then settings:
 * "NAME=VALUE" is Flink's, "kafka:NAME=VALUE" the consumer's.
 */
public final class FlinkJob {
    public static final class Payment {
        public long id;
        public String customer;
        public BigDecimal amount;
        public Instant at;
        public int partition;
        public long offset;
    }

    private static final class Payments implements KafkaRecordDeserializationSchema<Payment> {
        private static final JsonFactory JSON = new JsonFactory();

        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Payment> out) throws IOException {
            Payment payment = new Payment();
            payment.partition = record.partition();
            payment.offset = record.offset();
            try (JsonParser parser = JSON.createParser(record.value())) {
                while (parser.nextToken() != null) {
                    if (parser.currentToken() != JsonToken.FIELD_NAME) {
                        continue;
                    }
                    String name = parser.currentName();
                    parser.nextToken();
                    switch (name) {
                        case "id" -> payment.id = parser.getLongValue();
                        case "customer" -> payment.customer = parser.getText();
                        case "amount" -> payment.amount = parser.getDecimalValue();
                        case "at" -> payment.at = Instant.parse(parser.getText());
                        default -> parser.skipChildren();
                    }
                }
            }
            out.collect(payment);
        }

        @Override
        public TypeInformation<Payment> getProducedType() {
            return TypeInformation.of(Payment.class);
        }
    }

    private static Sink<Payment> sink(boolean xa, String url, String insert, int batch) {
        JdbcSinkBuilder<Payment> builder =
                JdbcSink.<Payment>builder()
                        .withExecutionOptions(
                                JdbcExecutionOptions.builder()
                                        .withBatchSize(batch)
                                        .withBatchIntervalMs(xa ? 0 : 100)
                                        .withMaxRetries(xa ? 0 : 3)
                                        .build())
                        .withQueryStatement(
                                insert,
                                (statement, payment) -> {
                                    statement.setLong(1, payment.id);
                                    statement.setString(2, payment.customer);
                                    statement.setBigDecimal(3, payment.amount);
                                    statement.setObject(4, payment.at.atOffset(ZoneOffset.UTC));
                                    statement.setInt(5, payment.partition);
                                    statement.setLong(6, payment.offset);
                                });
        if (!xa) {
            return builder.buildAtLeastOnce(
                    new JdbcConnectionOptions.JdbcConnectionOptionsBuilder()
                            .withUrl(url)
                            .withDriverName("org.postgresql.Driver")
                            .build());
        }
        return builder.buildExactlyOnce(
                // PostgreSQL allows one transaction for each connection.
                JdbcExactlyOnceOptions.builder().withTransactionPerConnection(true).build(),
                () -> {
                    PGXADataSource source = new PGXADataSource();
                    source.setUrl(url);
                    return source;
                });
    }

    public static void main(String[] arguments) throws Exception {
        boolean xa = arguments[0].equals("xa");
        String topic = arguments[4];
        Configuration configuration = new Configuration();
        KafkaSourceBuilder<Payment> source =
                KafkaSource.<Payment>builder()
                        .setTopics(topic)
                        .setGroupId(topic)
                        .setStartingOffsets(OffsetsInitializer.earliest())
                        .setDeserializer(new Payments());
        for (int i = 5; i < arguments.length; i++) {
            String[] setting = arguments[i].split("=", 2);
            if (setting[0].startsWith("kafka:")) {
                source.setProperty(setting[0].substring("kafka:".length()), setting[1]);
            } else {
                configuration.setString(setting[0], setting[1]);
            }
        }
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        environment
                .fromSource(source.build(), WatermarkStrategy.noWatermarks(), "kafka")
                .sinkTo(sink(xa, arguments[1], arguments[2], Integer.parseInt(arguments[3])));
        environment.execute();
    }
}
