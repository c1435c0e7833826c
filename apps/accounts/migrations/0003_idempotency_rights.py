"""What a stored answer was given on the strength of."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0002_invitations")]

    operations = [
        migrations.AddField(model_name="idempotencykey", name="rights", field=models.JSONField(null=True)),
    ]
